"""The result of one iteration's collection, for each worker and the whole fleet."""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import dataclass, field

from digirl_dist.tasks import Key, Purpose, Round
from digirl_dist.trajectory import Trajectory


@dataclass
class WorkerResult:
    """The result of one worker in one iteration."""

    worker: str
    slots: int = 0
    retried: int = 0
    """Episodes lost with an emulator, whose tickets ran again."""
    losses: list[str] = field(default_factory=list)
    """The reason of each loss of the worker itself."""
    push_s: float = 0.0
    push_bytes: int = 0
    pull_bytes: int = 0
    slot_seconds: dict[str, float] = field(default_factory=dict)
    """The slots' time in seconds since the previous result, by activity (see slot_time)."""


@dataclass
class CollectionResult:
    """The fleet's episodes: one per ticket of the iteration. Times are monotonic seconds of the host."""

    iteration: int
    trajectories: Sequence[Trajectory]
    """The episodes in the order of their tickets."""
    worker_results: Sequence[WorkerResult] = ()
    started_at: float = 0.0
    acting_at: float | None = None
    """When the last slot that began before an episode ended sent its first action; None if nothing had to run."""
    last_ended_at: float | None = None
    """When the last episode ended on its worker."""
    ended_at: float = 0.0
    stored_at: float | None = None
    """When all episodes were in the store."""
    busy: float | None = None
    """Share of slot-seconds spent in episodes while tickets were left."""
    seconds: dict[Key, float] = field(default_factory=dict)
    """Duration of each episode in seconds, except those that landed before this process started."""
    purpose: Purpose = "train"
    measured: int = 0
    """The policy version of a measurement."""
    set_aside: Sequence[str] = ()
    """Each ticket that failed too often on too many workers, with the reasons; training does not ask for it again."""
    judging: dict[str, float] = field(default_factory=dict)
    """Time and cost of judging, unless the emulator judges."""

    @property
    def round(self) -> Round:
        return Round(self.iteration, self.purpose, self.measured)

    @classmethod
    def empty(cls, wanted: Round) -> CollectionResult:
        """Returns the result of a round for which nothing ran."""
        now = time.monotonic()
        number, purpose, measured = wanted
        return cls(number, (), started_at=now, ended_at=now, purpose=purpose, measured=measured)
