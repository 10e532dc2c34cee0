"""A place for one emulator: starts it in a process of its own, asks it, and ends it when it does not answer."""

from __future__ import annotations

import errno
import os
import random
import socket
import subprocess
import sys
import time
from collections import defaultdict
from contextlib import suppress
from enum import Enum
from pathlib import Path
from typing import Any

from digirl_dist.child_process import environment, last_lines, opened_log
from digirl_dist.errors import ActionError, EmulatorCrashed, EmulatorError, EmulatorHung
from digirl_dist.protocol.messages import SlotLimits
from digirl_dist.rollout.emulator_process import Pipe, readable, restored
from digirl_dist.settings import LimitSettings
from digirl_dist.settings.workers import back_off
from digirl_dist.tasks import Task
from digirl_dist.types import Clock, Json

_SHORTAGES = (errno.EAGAIN, errno.ENOMEM, errno.EMFILE, errno.ENFILE)
_TOO_MUCH = "; run fewer emulators on this machine (bsize), or raise its limits of processes and files (`ulimit -u -n`)"


def slot_limits(limits: LimitSettings) -> SlotLimits:
    """Returns the slot limits of a run's configuration."""
    return SlotLimits(limits.boot_s, limits.reset_s, limits.step_s, limits.slot_failures, limits.quarantine_s)


class State(Enum):
    """What a slot is doing."""

    down = "down"  # no process; starts again when the back-off is over
    booting = "booting"
    idle = "idle"
    asked = "asked"  # a reset or step is under way
    closed = "closed"  # failed too often; out of service


class Slot:
    """One emulator under a watchdog. Not thread-safe: it belongs to one loop.

    Call ``start``; then ``reset`` or ``step`` when idle and ``answer`` when ``pipe`` is readable or ``deadline`` has
    passed.
    """

    def __init__(self, index: int, factory: Path, limits: SlotLimits, log: Path) -> None:
        self.index = index
        self.state = State.down
        self.deadline = 0.0
        """Monotonic time at which the present state is overdue (down or closed: at which a new start is due)."""
        self.since = time.monotonic()
        """Monotonic time at which the present state began."""
        self.failures = 0
        self.reason = ""
        """Why it was closed, or why it failed last."""
        self.pipe: Pipe | None = None
        """The way to the emulator's process, while there is one."""
        self.has_booted = False
        self._factory = factory
        self._limits = limits
        self._log = log
        self._lifeline: int | None = None
        self._process: subprocess.Popen[bytes] | None = None
        self._ended: list[subprocess.Popen[bytes]] = []
        self._is_excused = False
        self.asked = ""
        """The request under way: start, reset or step; empty when idle."""

    def start(self) -> None:
        """Starts the emulator's process; ``answer`` tells when it is ready.

        Raises EmulatorCrashed if the machine refuses that; then the slot is down or closed.
        """
        self._is_excused = False
        self._enter(State.booting, "start", self._limits.boot_s)
        try:
            self._spawn()
        except OSError as error:
            advice = _TOO_MUCH if error.errno in _SHORTAGES else ""
            raise self._failed(EmulatorCrashed(f"emulator {self.index} cannot be started: {error}{advice}")) from error

    def _spawn(self) -> None:
        ours, theirs = socket.socketpair()
        self.pipe = Pipe(ours)
        with theirs:
            lifeline_theirs, self._lifeline = os.pipe()
            try:
                self._process = self._started(theirs.fileno(), lifeline_theirs)
            finally:
                os.close(lifeline_theirs)

    def _started(self, *of_the_process: int) -> subprocess.Popen[bytes]:
        command = [sys.executable, "-m", "digirl_dist.rollout.emulator_process"]
        with opened_log(self._log) as log:
            return subprocess.Popen(
                [*command, *map(str, of_the_process), str(self._factory)],
                pass_fds=of_the_process,
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                start_new_session=True,
                env=environment(),
            )

    def reset(self, task: Task, seed: int, is_excused: bool = False) -> None:
        """Begins an episode; ``is_excused``: if it fails, that says nothing against the emulator."""
        self._is_excused = is_excused
        self._ask("reset", self._limits.reset_s, task, seed)

    def step(self, action: Json) -> None:
        self._ask("step", self._limits.step_s, action)

    def answer(self) -> tuple[Any, float] | None:
        """Returns what came back (an Observation, a Transition, or None after a start) and the seconds it took there.

        None as a whole while the answer is still to come. Raises ActionError for a refused action and TrajectoryError
        for what no episode may have (the emulator goes on), EmulatorHung, EmulatorCrashed or EmulatorError; then the
        process is gone and the slot is down or closed.
        """
        assert self.pipe is not None
        try:
            answer = self.pipe.received()
        except (EOFError, OSError):
            tail = last_lines(self._log)
            raise self._failed(EmulatorCrashed(f"emulator {self.index} ended during its {self.asked}{tail}")) from None
        if answer is None:
            if time.monotonic() >= self.deadline:
                raise self._failed(EmulatorHung(f"emulator {self.index} did not answer its {self.asked} in time"))
            return None
        kind, value, seconds = answer
        if kind == "fatal":
            self.failures = self._limits.failures
        if kind in ("fatal", "error"):
            raise self._failed(EmulatorError(f"emulator {self.index} failed in its {self.asked}: {value.strip()}"))
        self.has_booted = True
        self._enter(State.idle, "", float("inf"))
        if kind == "refused":
            raise ActionError(value)
        return restored(value) if kind == "done" else None, seconds

    def wait_for_answer(self) -> tuple[Any, float]:
        """Returns ``answer`` when it has come, or when the deadline has passed."""
        answer = None
        while answer is None:
            assert self.pipe is not None
            readable([self.pipe.fileno()], max(0.0, self.deadline - time.monotonic()))
            answer = self.answer()
        return answer

    def succeeded(self) -> None:
        """Forgets earlier failures, since an episode came to its end."""
        self.failures = 0

    def let_go(self) -> None:
        """Ends the emulator at once, whatever it is doing. Does not wait."""
        self._release(in_order=False)
        self._enter(State.down, "", float("inf"))

    def give_up(self) -> None:
        """Closes the slot for good."""
        self._enter(State.closed, "", float("inf"))

    def close(self) -> None:
        """Asks the emulator to close in order. Does not wait; see ``wait``."""
        self._release(in_order=self.state in (State.idle, State.asked))
        self._enter(State.closed, "", float("inf"))

    def wait(self, deadline: float) -> None:
        """Waits for the processes that were let go, until the monotonic time ``deadline``."""
        for process in self._ended:
            try:
                process.wait(max(0.1, deadline - time.monotonic()))
            except subprocess.TimeoutExpired:
                process.kill()
        self._ended.clear()

    def _ask(self, request: str, limit_s: float, *arguments: Any) -> None:
        assert self.pipe is not None and self.state is State.idle
        self._enter(State.asked, request, limit_s)
        with suppress(OSError):  # its end is read as such by ``answer``
            self.pipe.send((request, *arguments), socket.MSG_DONTWAIT)

    def _failed(self, error: EmulatorError) -> EmulatorError:
        self.reason = str(error)
        self._release(in_order=False)
        self.failures += not self._is_excused
        if self.failures >= self._limits.failures and not self._is_excused:
            self._enter(State.closed, "", self._limits.quarantine_s)
        else:
            longest = back_off(self._limits.back_off_s, self._limits.back_off_max_s, max(0, self.failures - 1))
            self._enter(State.down, "", random.uniform(longest / 2, longest))
        return error

    def _release(self, in_order: bool) -> None:
        """Closes both ends towards the process; its guard then ends everything below it."""
        if self._lifeline is not None:
            if in_order:
                with suppress(OSError):
                    os.write(self._lifeline, b"c")
            os.close(self._lifeline)
            self._lifeline = None
        if self.pipe is not None:
            self.pipe.close()
            self.pipe = None
        if self._process is not None:
            self._ended = [process for process in (*self._ended, self._process) if process.poll() is None]
            self._process = None

    def _enter(self, state: State, asked: str, limit_s: float) -> None:
        self.state = state
        self.asked = asked
        self.since = time.monotonic()
        self.deadline = self.since + limit_s


ACTIVITIES = ("boot", "reset", "step", "policy", "push", "barrier", "update", "faults", "speculation", "closed", "away")
"""In words: starting an emulator; its reset; its steps; waiting for the policy's action; having no ticket while the
checkpoint comes, while other slots finish, or while the host learns; work that was lost with an emulator; work that
another worker finished first; being out of service; what nobody can tell, since the worker was lost."""


class SlotTime:
    """The clock of one slot, in seconds of this machine."""

    def __init__(self, activity: str = "boot", clock: Clock = time.monotonic) -> None:
        self._activity = activity
        self._clock = clock
        self._since = clock()
        self._spent: defaultdict[str, float] = defaultdict(float)
        self._uncertain: defaultdict[str, float] = defaultdict(float)

    def enter(self, activity: str) -> None:
        """Begins an activity and ends the one before."""
        self._book()
        self._activity = activity

    def settle(self, lost_to: str | None = None) -> None:
        """Ends an episode: its seconds stay where they are, or are booked under what they were lost to."""
        self._book()
        for activity, seconds in self._uncertain.items():
            self._spent[lost_to or activity] += seconds
        self._uncertain.clear()

    def take(self) -> dict[str, float]:
        """Returns the seconds by activity since the last call. Those of an episode under way come when it is over."""
        self._book()
        spent = dict(self._spent)
        self._spent.clear()
        return spent

    def _book(self) -> None:
        now = self._clock()
        in_episode = self._activity in ("reset", "step", "policy")
        (self._uncertain if in_episode else self._spent)[self._activity] += now - self._since
        self._since = now
