"""What one worker, and what the whole fleet, brought home in one iteration."""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import dataclass, field

from digirl_dist.tasks import Key, Purpose, Round
from digirl_dist.trajectory import Trajectory


@dataclass
class WorkerResult:
    """What one worker brought home in one iteration."""

    worker: str
    slots: int = 0
    episodes: int = 0
    retried: int = 0
    """Episodes it lost with an emulator and whose tickets ran again."""
    losses: list[str] = field(default_factory=list)
    """Why the worker itself was lost, each time."""
    push_s: float = 0.0
    push_bytes: int = 0
    pull_bytes: int = 0
    slot_seconds: dict[str, float] = field(default_factory=dict)
    """Where the time of its slots went since the result before, by activity (see slot_time)."""


@dataclass
class CollectionResult:
    """What the fleet brought home: every ticket of the iteration, once, unless it closed early; and what the iteration
    before left under way. Times are monotonic seconds of the host."""

    iteration: int
    trajectories: Sequence[Trajectory]
    """In the order of their tickets."""
    worker_results: Sequence[WorkerResult] = ()
    started_at: float = 0.0
    acting_at: float | None = None
    """When the last slot sent its first action; None if nothing had to be run."""
    last_ended_at: float | None = None
    """When the last episode ended on its worker."""
    ended_at: float = 0.0
    stored_at: float | None = None
    """When all of it was in the store."""
    busy: float | None = None
    """Share of slot-seconds spent in episodes while tickets were left."""
    seconds: dict[Key, float] = field(default_factory=dict)
    """How long its episodes took; those that landed before this process began are missing."""
    purpose: Purpose = "train"
    carried: int = 0
    """Episodes that were under way when the iteration closed: the next result has them."""
    cancelled: int = 0
    """Tickets that nobody had begun when the iteration closed: they are never run."""
    judging: dict[str, float] = field(default_factory=dict)
    """What judging took and cost, where it is not the emulator that judges."""

    @property
    def round(self) -> Round:
        return Round(self.iteration, self.purpose)

    @classmethod
    def empty(cls, iteration: int) -> CollectionResult:
        """What an iteration that learns offline brings home."""
        now = time.monotonic()
        return cls(iteration, (), started_at=now, ended_at=now)
