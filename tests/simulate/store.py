"""What a simulated host keeps on its disk, and what it tells."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from digirl_dist.collect.leases import Grant
from digirl_dist.collect.rollout_log import RolloutLog
from digirl_dist.collection import CollectionResult
from digirl_dist.storage.events import Events
from digirl_dist.storage.status import Status
from digirl_dist.storage.trajectory_store import Store
from digirl_dist.tasks import Key, Round, Ticket
from digirl_dist.trajectory import Trajectory
from simulate.world import World


class MemoryStore(Store):
    """The real store's rules without its files. ``touches`` is called before and after each change of the disk."""

    def __init__(self, touches: Callable[[], object] = lambda: None) -> None:
        self.episodes: dict[Round, dict[Key, Trajectory]] = {}
        self.files: dict[Round, Sequence[Trajectory]] = {}
        self.came_twice: list[Key] = []
        """Episodes that came although their ticket had landed, or their round was closed."""
        self.pulled_to: list[str] = []
        self.stumbles_at: int | None = None
        """Meets a defect as the next episode lands: just before that (0), or just after (1)."""
        self._touches = touches
        self._recent = {}

    def incoming(self, counts_in: Round, name: str) -> Path:
        self.pulled_to.append(name)
        return Path("simulated", name)

    def landed(self, wanted: Round) -> dict[Key, Trajectory]:
        if wanted in self.files:
            return {trajectory.ticket.key: trajectory for trajectory in self.files[wanted]}
        return dict(self.episodes.get(wanted, {}))

    def land(self, counts_in: Round, trajectory: Trajectory, checked: Path | bytes | None = None) -> bool:
        known = self.episodes.setdefault(counts_in, {})
        if trajectory.ticket.key in known or self.has(counts_in):
            self.came_twice.append(trajectory.ticket.key)
            return False
        self._touches()
        self._stumble(0)
        known[trajectory.ticket.key] = trajectory
        self._touches()
        self._stumble(1)
        return True

    def leave_aside(self, counts_in: Round, episode: Trajectory) -> None:
        del self.episodes[counts_in][episode.ticket.key]

    def flush(self) -> None:
        self._touches()

    def _stumble(self, place: int) -> None:
        if self.stumbles_at == place:
            self.stumbles_at = None
            raise ZeroDivisionError("a defect of ours")

    def append(self, result: CollectionResult) -> None:
        self._touches()
        if result.trajectories:
            self.files.setdefault(result.round, result.trajectories)
        self._touches()
        self.episodes.pop(result.round, None)
        if result.purpose == "train":
            self._recent[result.iteration] = result.trajectories

    def has(self, wanted: Round) -> bool:
        return wanted in self.files

    def unfinished(self) -> list[int]:
        return sorted(wanted.number for wanted in self.episodes if not self.has(wanted))

    def read(self, iteration: int) -> Sequence[Trajectory]:
        return self.files[Round(iteration)]


class MemoryLedger:
    """The leases that hosts gave; implements ``Ledger``."""

    def __init__(self) -> None:
        self._grants: list[Grant] = []

    def known(self) -> Sequence[Grant]:
        return [replace(grant, at=None) for grant in self._grants]

    def add(self, grants: Sequence[Grant]) -> None:
        self._grants.extend(grants)

    def replace(self, grants: Sequence[Grant]) -> None:
        self._grants = list(grants)


class MemoryLog(RolloutLog):
    """The keys that were asked for."""

    def __init__(self, touches: Callable[[], object]) -> None:
        self._tickets: dict[str, Ticket] = {}
        self._touches = touches

    def add(self, tickets: Mapping[str, Ticket]) -> None:
        self._touches()
        self._tickets.update(tickets)
        self._touches()

    def forget(self, keys: Iterable[str]) -> None:
        self._touches()
        for key in keys:
            self._tickets.pop(key, None)


class Recorder(Events):
    """Events in memory and in the trace."""

    def __init__(self, world: World) -> None:
        self._world = world
        self.lines: list[tuple[float, str, dict[str, Any]]] = []

    def emit(self, kind: str, **content: Any) -> None:
        self.lines.append((self._world.now, kind, content))
        self._world.trace("event", f"{kind} {content}".encode())

    def of(self, kind: str) -> list[dict[str, Any]]:
        return [content for _, one, content in self.lines if one == kind]

    def close(self) -> None:
        """There is no file."""


class SilentStatus(Status):
    """Kept, and not written."""

    def __init__(self) -> None:
        super().__init__()

    def write(self) -> None:
        """Nobody reads it."""
