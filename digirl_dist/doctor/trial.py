"""``doctor --try``: starts the configured emulator once on a worker."""

from __future__ import annotations

import json
import time
from contextlib import closing
from dataclasses import asdict, dataclass

import msgspec

from digirl_dist.emulator import Actions, BoxActions, DeviceActions, DiscreteActions, ProductActions
from digirl_dist.errors import JobError
from digirl_dist.protocol.messages import SlotLimits
from digirl_dist.ssh.channel import Channel
from digirl_dist.ssh.connection import Connection
from digirl_dist.tasks import Task
from digirl_dist.types import Json

_START_S = 30.0
_REMEDY = "repair what it names; the checks above may say more, and `digirl-dist setup` installs what emulators need"
_LACKS = "emulator.packages=[NAME] installs a package on the workers; then `digirl-dist setup`"


_MOST_PHASES = 8


class _Phase(msgspec.Struct, frozen=True):
    """What the trial on the worker says of a phase; ``error`` is the reason why it ended."""

    phase: str = ""
    seconds: float = 0.0
    seen: str = ""
    error: str | None = None
    unlike: bool = False
    """Whether the reset of the same task and seed gave another observation than the first."""

    def __str__(self) -> str:
        return f"{self.phase} {self.seconds:.2f} s" + (f" ({self.seen})" if self.seen else "")


_PHASES = msgspec.json.Decoder(_Phase)


@dataclass(frozen=True)
class Trial:
    """The emulator to try, as a packed factory, and what it must do."""

    emulator: bytes
    task: Task
    action: Json
    limits: SlotLimits
    steady: bool = True
    """That of the emulator's spec."""
    asked_for: bool = True
    """False: it is made because it takes seconds, where the package is installed."""

    @property
    def limit_s(self) -> float:
        return _START_S + self.limits.boot_s + 2 * self.limits.reset_s + self.limits.step_s


def some_action(actions: Actions) -> Json:
    """Returns an action that every emulator with such actions understands."""
    match actions:
        case DiscreteActions():
            return 0
        case BoxActions(low, high):
            return [min(max(0.0, least), most) for least, most in zip(low, high, strict=True)]
        case ProductActions(parts):
            return [some_action(part) for part in parts]
        case DeviceActions():
            return {"type": "tap", "x": 0.5, "y": 0.0}  # the upper edge, where nothing opens


def try_there(connection: Connection, python: list[str], trial: Trial) -> tuple[str, bool]:
    """Runs the trial on the worker; returns its timings as text, and whether equal seeds gave equal starts.

    Raises JobError with the reason, or LinkLostError.
    """
    channel = connection.open([*python, "-m", "digirl_dist.worker_program.trial"])
    request = {
        "size": len(trial.emulator),
        "task": asdict(trial.task),
        "action": trial.action,
        "steady": trial.steady,
        "limits": msgspec.structs.asdict(trial.limits),
    }
    deadline = time.monotonic() + trial.limit_s
    with closing(channel):
        channel.write(json.dumps(request).encode() + b"\n" + trial.emulator)
        phases: list[_Phase] = []
        while len(phases) <= _MOST_PHASES and (phase := _next(channel, deadline)):
            if phase.error is not None:
                remedy = _LACKS if "emulator.packages=[NAME]" in phase.error else _REMEDY
                raise JobError(connection.worker, phase.error, remedy)
            phases.append(phase)
        if not phases or channel.wait(_START_S) != 0:
            raise channel.ended()
        return ", ".join(map(str, phases)), not any(phase.unlike for phase in phases)


def _next(channel: Channel, deadline: float) -> _Phase | None:
    line = channel.readline(max(0.0, deadline - time.monotonic()))
    if not line:
        return None
    try:
        return _PHASES.decode(line)
    except (msgspec.MsgspecError, ValueError, RecursionError) as error:
        raise JobError(channel.worker, f"unexpected output instead of the trial's: {line[:200]!r}") from error
