"""A fleet on virtual time: the real ``Fleet`` and the real lives of its workers, over simulated machines."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from digirl_dist.fleet.fleet import Fleet
from digirl_dist.fleet.outgoing import Blob
from digirl_dist.fleet.session import PING_S
from digirl_dist.fleet.spec import Job
from digirl_dist.fleet.worker import RemoteWorker
from digirl_dist.fleet.worker_events import Pulled, Said, WorkerEvent
from digirl_dist.protocol.messages import SlotLimits, SlotSeconds, TensorEntry
from digirl_dist.settings import LimitSettings
from simulate.machine import Machine, MachineSpec
from simulate.program import RUN
from simulate.worker import Life
from simulate.world import World

SLOT_LIMITS = SlotLimits(boot_s=5.0, reset_s=5.0, step_s=8.0, failures=3, quarantine_s=10.0)


@dataclass(frozen=True)
class SimulatedPolicy:
    """A policy version of two tensors: one that never changes, and one of ``size`` bytes that always does."""

    iteration: int
    size: int = 1000

    def tensor_entries(self) -> dict[str, TensorEntry]:
        return {
            "frozen": TensorEntry("f0", "float32", [1]),
            "learned": TensorEntry(f"a{self.iteration:x}", "float32", [1]),
        }

    def blobs(self, digests: set[str]) -> list[Blob]:
        return [Blob(digest, 4 if digest == "f0" else self.size, lambda: memoryview(b"")) for digest in sorted(digests)]


class SimulatedFleet(Fleet[MachineSpec]):
    """The host's side of the machines, until the host is gone. ``seed`` is that of the back-offs' jitter."""

    def __init__(
        self, world: World, machines: Sequence[Machine], limits: LimitSettings, seed: str = "", policy_bytes: int = 1000
    ) -> None:
        self.world, self.limits, self.seed = world, limits, seed
        self.policy_bytes = policy_bytes
        self.host_rate = float("inf")
        """Bytes per second of files that the host's own link carries, to and from all workers together."""
        self.episode_s = 0.0
        """Seconds of the collector's thread that an episode takes."""
        self.disk_is_full = False
        self.each_turn: Callable[[], object] = lambda: None
        """Called before the collector waits for an event."""
        self._suspended_until = 0.0
        self._uplink_free_at = 0.0
        self._busy_until = 0.0
        self.alive = True
        """Whether the host's process is there."""
        self.lives: dict[str, Life] = {}
        """The newest of each name."""
        self._machines = {machine.spec.name: machine for machine in machines}
        self._begun: list[Life] = []
        nowhere: Any = None
        super().__init__([(machine.spec, _job(machine)) for machine in machines], nowhere, limits)

    @property
    def suspended(self) -> bool:
        """Whether the host's process is stopped: it hears nothing, and nothing of it happens."""
        return self.world.now < self._suspended_until

    @property
    def awake_since(self) -> float:
        """When its process went on last. Whatever was silent before has all of its time again."""
        return self._suspended_until

    def later(self, seconds: float, action: Callable[[], object]) -> None:
        """Something that the host does; never once the host is gone, nor while it is suspended."""
        self.world.later(seconds, lambda: self._do(action))

    def sending_s(self, size: int, rate: float) -> float:
        """Returns how long a file takes over a worker's link and the host's own, which carries one after the other."""
        free_at = self._uplink_free_at = max(self._uplink_free_at, self.world.now) + size / self.host_rate
        return max(free_at - self.world.now, size / rate)

    def start(self) -> None:
        for worker in self.workers.values():
            worker.start()
        self.later(PING_S, self._ping)

    def join(self, machine: Machine) -> None:
        """Adds a worker while the fleet is at work."""
        self._machines[machine.spec.name] = machine
        self.add(machine.spec, _job(machine))

    def remove(self, name: str) -> None:
        worker = self.workers[name]
        self.workers = {other: each for other, each in self.workers.items() if other != name}
        self._stop(worker)

    def next_event(self, timeout_s: float) -> WorkerEvent | None:
        self.each_turn()
        until = self.world.now + timeout_s
        while self._is_away or not len(self._events):
            if not self.world.advance(max(until, self._suspended_until, self._busy_until)) and not self._is_away:
                break
        event = self._events.get(0.0)
        if isinstance(event, Pulled):
            self._busy_until = self.world.now + self.episode_s
        return event

    def has_unread_account(self, worker: str) -> bool:
        """Returns whether the collector has yet to read where the worker's slots spent their time."""
        said = [event for event in self._events if isinstance(event, Said) and event.worker == worker]
        return any(isinstance(event.message, SlotSeconds) for event in said)

    def suspend(self, seconds: float) -> None:
        """Stops the host's process for so long. Nobody's silence meanwhile counts against them."""
        self._suspended_until = max(self._suspended_until, self.world.now + seconds)
        self.world.later(self._suspended_until - self.world.now, self._wake)

    def close(self) -> None:
        for worker in self.workers.values():
            self._stop(worker)

    def vanish(self) -> None:
        """The host process is killed."""
        self.alive = False
        for life in self._begun:
            life.kill()

    @property
    def waiting(self) -> int:
        """Events that the collector has not taken."""
        return len(self._events)

    @property
    def _is_away(self) -> bool:
        """Whether the collector's thread gets to no event."""
        return self.world.now < max(self._suspended_until, self._busy_until)

    def _worker(self, spec: MachineSpec, job: Job) -> RemoteWorker:
        life = self.lives[spec.name] = Life(self, self._machines[spec.name])
        self._begun.append(life)
        return RemoteWorker(spec, job, life, self.limits, self._events.put, None, life.runtime)

    def _weights(self, checkpoint: Any) -> Any:
        return SimulatedPolicy(checkpoint.iteration, self.policy_bytes)

    def _stop(self, worker: RemoteWorker) -> None:
        worker.stop()
        self.later(0.0, self.lives[worker.spec.name].wake)

    def _do(self, action: Callable[[], object]) -> None:
        if not self.alive:
            return
        if self.suspended:
            self.later(self._suspended_until - self.world.now, action)
        else:
            action()

    def _wake(self) -> None:
        for life in self.lives.values() if not self.suspended else ():
            if (connection := life.connection) is not None:
                connection.heard_at = self.world.now
                connection.to_host.flow()

    def _ping(self) -> None:
        for worker in self.workers.values():
            worker.ping(self.world.now)
        self.later(PING_S, self._ping)


def _job(machine: Machine) -> Job:
    return Job(RUN, b"agent", b"emulator", 10, SLOT_LIMITS, 1, machine.program.orphan_s)
