"""What the figures share: SSH servers, a tiny policy, our collector on them, and the line of JSON at the end."""

from __future__ import annotations

import json
import queue
import shutil
import statistics
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import nn

from benchmarks.measure import sized, waiting_for
from benchmarks.sshd import Sshd
from digirl_dist.collect.dispatch import DispatchRules
from digirl_dist.collect.fleet_collector import FleetCollector
from digirl_dist.collection import CollectionResult
from digirl_dist.emulator.rehearsal import RehearsalEmulator, rehearsal_spec, rehearsal_tasks
from digirl_dist.fleet.fleet import Fleet
from digirl_dist.fleet.relay import Relays
from digirl_dist.fleet.roster import this_python
from digirl_dist.fleet.spec import Job, WorkerSpec
from digirl_dist.fleet.ssh_connection import SshConnector
from digirl_dist.fleet.worker_events import PolicyLoaded, Relayed, Said, WorkerEvent
from digirl_dist.protocol.messages import Acting, EpisodeManifest, EpisodeReady
from digirl_dist.rollout.slot import slot_limits
from digirl_dist.settings import LimitSettings, PushDtype, RehearsalSettings, SshSettings
from digirl_dist.settings.plugins import values
from digirl_dist.ssh.connection import Address
from digirl_dist.storage.checkpoint import Checkpoint, Checkpoints
from digirl_dist.storage.events import Events
from digirl_dist.storage.status import Status
from digirl_dist.storage.trajectory_store import Store
from digirl_dist.tasks import Ticket
from digirl_dist.trajectory import Decision, Observation
from digirl_dist.user_code.packing import pack

ROOT = Path(__file__).resolve().parent.parent
DEVICE = sized(
    RehearsalSettings(reset_s=0.5, reset_sigma=0.4, step_s=0.15, step_sigma=0.5, steps=10, steps_sigma=0.5),
    RehearsalSettings(reset_s=0.02, step_s=0.01, steps=3),
)
"""What most figures run: an emulator that only waits, each time for another while, as devices do."""
_WARM_UP = 1_000_000
"""Number of the first iteration that only warms up."""
Values = dict[str, tuple[float, str]]
"""Name -> (what was measured, its goal)."""


class Tiny(nn.Module):
    """A linear policy, with as many further tensors as it is to weigh."""

    feature_size = 4

    def __init__(self, tensors: int = 0, numbers: int = 0) -> None:
        super().__init__()
        self.logits = nn.Linear(4, rehearsal_spec(RehearsalSettings().image_size).actions.n)  # type: ignore[union-attr]
        self.ballast = nn.ParameterList([nn.Parameter(torch.randn(numbers)) for _ in range(tensors)])

    def act(self, observations: Sequence[Observation], rngs: Sequence[np.random.Generator]) -> list[Decision]:
        log_probs = self.logits(self.features(observations)).log_softmax(-1).numpy()
        drawn = [int(np.argmax(row + rng.gumbel(size=row.shape))) for row, rng in zip(log_probs, rngs, strict=True)]
        return [Decision(action, float(row[action])) for action, row in zip(drawn, log_probs, strict=True)]

    def log_prob(self, observations: Sequence[Observation], actions: Sequence[Any]) -> torch.Tensor:
        log_probs: torch.Tensor = self.logits(self.features(observations)).log_softmax(-1)
        return log_probs[range(len(actions)), list(actions)]

    def features(self, observations: Sequence[Observation]) -> torch.Tensor:
        return torch.tensor(np.stack([seen.vector for seen in observations if seen.vector is not None]))


def change_all(policy: Tiny) -> None:
    """Gives every tensor beside the policy's own other numbers."""
    for tensor in policy.ballast:
        tensor.normal_()


@dataclass(frozen=True)
class Machine:
    """A worker machine, which here is an SSH server on loopback (or in a network namespace)."""

    address: Address
    slots: int
    emulator: RehearsalSettings


class WatchedFleet(Fleet[Any]):
    """Remembers what the workers said, for the figures that the result does not have."""

    def __init__(self, *arguments: Any) -> None:
        super().__init__(*arguments)
        self.manifests: list[tuple[float, EpisodeManifest]] = []
        self.acted: set[tuple[str, int]] = set()
        self.relayed: list[Relayed] = []
        self.loaded: queue.SimpleQueue[PolicyLoaded] = queue.SimpleQueue()

    def next_event(self, timeout_s: float) -> WorkerEvent | None:
        event = super().next_event(timeout_s)
        match event:
            case Said(_, EpisodeReady(manifest)):
                self.manifests.append((time.monotonic(), manifest))
            case Said(worker, Acting(slot, _)):
                self.acted.add((worker, slot))
            case Relayed():
                self.relayed.append(event)
            case PolicyLoaded():
                self.loaded.put(event)
        return event


class Ours:
    """digirl_dist's collector over SSH. ``weight``: how many tensors beside the policy's own, and numbers in each.

    With ``relays`` the machines pass tensors on to each other.
    """

    def __init__(
        self,
        folder: Path,
        machines: Sequence[Machine],
        limits: LimitSettings,
        weight: tuple[int, int] = (0, 0),
        dtype: PushDtype = PushDtype.float32,
        relays: Relays | None = None,
    ) -> None:
        self.name = folder.name
        self.machines = machines
        self.slots = sum(machine.slots for machine in machines)
        self.store = Store(folder / "trajectories")
        self.landed: dict[tuple[int, int], float] = {}
        self._checkpoints = Checkpoints(folder / "checkpoints", keep_every=10**9)
        self._policy = Tiny(*weight)
        self._events = Events(folder / "events.jsonl", (self._listen,))
        self._limits = limits
        self._relays = relays
        self.fleet = self._fleet(folder, machines, weight, dtype)
        status = Status(folder / "status.json")
        parts = limits, DispatchRules(), self.store, self._events, status
        self.collector = FleetCollector(self.fleet, *parts)

    def _fleet(
        self, folder: Path, machines: Sequence[Machine], weight: tuple[int, int], dtype: PushDtype
    ) -> WatchedFleet:
        workers = [
            (WorkerSpec(one.address, one.slots, str(folder / "jobs" / one.address.name), this_python, site="here"), job)
            for one, job in ((machine, self._job(machine.emulator, folder, weight)) for machine in machines)
        ]
        connector = SshConnector(SshSettings(), self._limits, relays=self._relays)
        return WatchedFleet(workers, connector, self._limits, dtype)

    def _job(self, settings: RehearsalSettings, folder: Path, weight: tuple[int, int] = (0, 0)) -> Job:
        limits = self._limits
        emulator = pack(partial(RehearsalEmulator, **values(settings)))
        return Job(folder.name, pack(partial(Tiny, *weight)), emulator, None, slot_limits(limits), 1, limits.orphan_s)

    def _listen(self, kind: str, content: dict[str, Any]) -> None:
        if kind == "episode":
            self.landed[content["iteration"], content["ticket"]] = time.monotonic()

    def _came(self, iteration: int) -> int:
        return sum(landed == iteration for landed, _ in list(self.landed))

    def checkpoint(self, iteration: int, change: Callable[[Tiny], None] = lambda policy: None) -> Checkpoint:
        """A new version: the policy itself always changes a little."""
        with torch.no_grad():
            self._policy.logits.bias.add_(0.001)
            change(self._policy)
        return self._checkpoints.save(iteration, self._policy.state_dict(), {}, {})

    def warm_up(self, rounds: int = 100) -> None:
        """Until every slot of every worker has acted, so that nothing is started while we measure."""
        for number in range(_WARM_UP, _WARM_UP + rounds):
            with waiting_for(
                f"every slot of {self.name} to act,", lambda: f"{len(self.fleet.acted)}/{self.slots} did:"
            ):
                self.iteration(number, self.slots)
            if len(self.fleet.acted) == self.slots:
                self.fleet.manifests.clear()
                return
        raise TimeoutError("some slots of the workers never acted")

    def iteration(self, number: int, count: int, ahead: int = 0) -> tuple[CollectionResult, float]:
        """Collect ``count`` tickets under a new checkpoint; the seconds until all of them are in the store.

        Slots that are idle begin with those of ``ahead`` iterations after it.
        """
        checkpoint = self.checkpoint(number)
        begun = [tickets(later, count) for later in range(number, number + 1 + ahead)]
        started = time.monotonic()
        for each in begun:
            self.collector.begin(checkpoint, each)
        with waiting_for(f"iteration {number} of {self.name}:", lambda: f"{self._came(number)}/{count} episodes"):
            result = self.collector.collect(checkpoint, begun[0])
        self.store.append(result)
        assert len(result.trajectories) == count
        return result, time.monotonic() - started

    def push(self, checkpoint: Checkpoint) -> tuple[float, int]:
        """Seconds until every worker acts with it, and the bytes of tensors that were sent."""
        started, waiting, sent = time.monotonic(), set(self.fleet.workers), 0
        self.collector.act_with(checkpoint)
        self.collector.attend()
        with waiting_for("a checkpoint to be loaded by", lambda: ", ".join(sorted(waiting))):
            while waiting:
                event = self.fleet.loaded.get(timeout=60.0)
                if event.version == checkpoint.iteration:
                    waiting.discard(event.worker)
                    sent += event.push_bytes
        return time.monotonic() - started, sent

    def close(self) -> None:
        self.collector.close()
        self._events.close()


@dataclass
class Stage:
    """A scratch folder and the servers in it; everything ends with ``stack``."""

    folder: Path
    stack: ExitStack
    servers: list[Address] = field(default_factory=list)

    def serve(self, count: int) -> list[Address]:
        for number in range(len(self.servers), count):
            self.servers.append(self.stack.enter_context(sshd(f"w{number}", self.folder / f"sshd-{number}")))
        return self.servers[:count]

    def ours(
        self, name: str, machines: Sequence[Machine], limits: LimitSettings, weight: tuple[int, int] = (0, 0)
    ) -> Ours:
        ours = Ours(self.folder / name, machines, limits, weight)
        self.stack.callback(ours.close)
        return ours


@contextmanager
def stage() -> Iterator[Stage]:
    torch.set_num_threads(1)
    with ExitStack() as stack:
        folder = tempfile.mkdtemp(prefix="digirl-dist-bench-")
        stack.callback(shutil.rmtree, folder, ignore_errors=True)
        yield Stage(Path(folder), stack)


@contextmanager
def sshd(name: str, folder: Path, host: str = "127.0.0.1", prefix: Sequence[str] = ()) -> Iterator[Address]:
    """OpenSSH's server with keys of its own; ``prefix`` runs it elsewhere, in a network namespace say."""
    server = Sshd(folder, host, prefix, more="MaxStartups 200\nMaxSessions 200\nPermitRootLogin yes")
    with ExitStack() as stack:
        stack.callback(server.close)
        server.start()
        yield server.address(name)


def tickets(iteration: int, count: int) -> list[Ticket]:
    """The same for every recipe. The first ``n`` do not depend on ``count``."""
    [task] = rehearsal_tasks()
    rng = np.random.default_rng([iteration, 17])
    return [Ticket(iteration, index, task, int(rng.integers(2**31)), iteration) for index in range(count)]


def nominal_s(settings: RehearsalSettings, ticket: Ticket) -> float:
    """What an episode takes in its emulator, whichever actions are taken."""
    slept: list[float] = []
    emulator = RehearsalEmulator(**values(settings), sleep=slept.append)
    slept.clear()
    emulator.reset(ticket.task, ticket.seed)
    while not emulator.step(0).ended:
        pass
    return sum(slept)


def median(numbers: Sequence[float]) -> float:
    return float(statistics.median(numbers))


def median_ratio(theirs: Sequence[float], ours: Sequence[float]) -> float:
    """Of pairs that were measured one after the other."""
    return median([one / other for one, other in zip(theirs, ours, strict=True)])


def show(figure: str, values: Values, detail: dict[str, Any]) -> None:
    """The one line that a figure ends with."""
    told = {name: {"value": round(value, 4), "goal": goal} for name, (value, goal) in values.items()}
    print(json.dumps({"figure": figure, "values": told, "detail": detail}))


def rounded(numbers: Sequence[float]) -> list[float]:
    return [round(number, 3) for number in numbers]
