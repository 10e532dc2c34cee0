"""Book-keeping of one iteration's collection: results per worker, and where slot-seconds went."""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Mapping, Sequence

from digirl_dist.collection import CollectionResult, WorkerResult
from digirl_dist.tasks import Key, Round
from digirl_dist.trajectory import Trajectory
from digirl_dist.types import Clock


class IterationStats:
    """Collects what happens in one iteration and adds it up. Times are monotonic seconds of the host."""

    def __init__(self, round: Round, clock: Clock) -> None:
        self.round = round
        self._clock = clock
        self.started_at = self._clock()
        self.seconds: dict[Key, float] = {}
        self._worker_results: dict[str, WorkerResult] = {}
        self._episodes: list[tuple[str, float, float]] = []
        self._acting: dict[tuple[str, int], float] = {}

    def worker_result(self, worker: str) -> WorkerResult:
        """Returns the worker's result, which the caller may add to."""
        return self._worker_results.setdefault(worker, WorkerResult(worker))

    def has_slots(self, worker: str, slots: int) -> None:
        """Notes how many slots a worker has, or had at most: a lost one brought episodes with them."""
        if slots:
            result = self.worker_result(worker)
            result.slots = max(result.slots, slots)

    def spent(self, worker: str, seconds: Mapping[str, float]) -> None:
        """Adds seconds of a worker's slots by activity."""
        booked = self.worker_result(worker).slot_seconds
        for activity, more in seconds.items():
            booked[activity] = booked.get(activity, 0.0) + more

    def acting(self, worker: str, slot: int) -> None:
        """Notes that a slot sent the first action of an episode."""
        self._acting.setdefault((worker, slot), self._clock())

    def ended(self, worker: str, seconds: float, age_s: float) -> None:
        """Notes an episode of that length that ended ``age_s`` ago."""
        now = self._clock()
        end = now - min(max(0.0, age_s), now - self.started_at)  # a worker may say anything, even nan
        self._episodes.append((worker, end - seconds, end))

    def result(
        self, trajectories: Sequence[Trajectory], carried: int, cancelled: int, set_aside: Sequence[str]
    ) -> CollectionResult:
        ends = [end for _, _, end in self._episodes]
        return CollectionResult(
            iteration=self.round.number,
            purpose=self.round.purpose,
            measured=self.round.measured,
            trajectories=trajectories,
            worker_results=[self._worker_results[name] for name in sorted(self._worker_results)],
            started_at=self.started_at,
            acting_at=self._acting_at(),
            last_ended_at=max(ends, default=None),
            ended_at=self._clock(),
            busy=self._busy(),
            seconds=self.seconds,
            carried=carried,
            cancelled=cancelled,
            set_aside=set_aside,
        )

    def _acting_at(self) -> float | None:
        """Returns when the emulators ran: with the last first action of a slot before an episode of the round ended.

        Slots that begin later, such as those of a worker that joins or that runs a ticket a second time, do so while
        others run.
        """
        first_end = min((end for _, start, end in self._episodes if start >= self.started_at), default=math.inf)
        begun = self._acting.values()
        return max((at for at in begun if at <= first_end), default=min(begun, default=None))

    def _busy(self) -> float | None:
        """Returns the share of slot-seconds in episodes, from the start of the collection to that of the last episode.

        None if there were not more episodes than slots: then no ticket ever waited for a slot. Whatever a worker says
        of its episodes, or brings of those that ended while nobody collected, its slots are at most busy all the time.
        """
        slots = {result.worker: result.slots for result in self._worker_results.values()}
        start = max((start for _, start, _ in self._episodes), default=self.started_at)
        window_s = start - self.started_at
        whole_s = sum(slots.values()) * window_s
        if len(self._episodes) <= sum(slots.values()) or whole_s <= 0:
            return None
        busy_s: defaultdict[str, float] = defaultdict(float)
        for worker, begun, ended in self._episodes:
            busy_s[worker] += max(0.0, min(ended, start) - max(begun, self.started_at))
        return sum(min(busy_s[worker], count * window_s) for worker, count in slots.items()) / whole_s
