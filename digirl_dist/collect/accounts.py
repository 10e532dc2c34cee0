"""Book-keeping of collections: results per worker, and where slot-seconds went."""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from digirl_dist.collection import CollectionResult, WorkerResult
from digirl_dist.tasks import Key, Round
from digirl_dist.types import Clock


class IterationStats:
    """Collects what happens in one iteration and adds it up. Times are monotonic seconds of the host."""

    def __init__(self, clock: Clock) -> None:
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

    def result(self, of: Round, set_aside: Sequence[str]) -> CollectionResult:
        """Returns what is known of the round but its episodes."""
        return CollectionResult(
            iteration=of.number,
            purpose=of.purpose,
            measured=of.measured,
            trajectories=(),
            worker_results=[self._worker_results[name] for name in sorted(self._worker_results)],
            started_at=self.started_at,
            acting_at=self._acting_at(),
            last_ended_at=max((end for _, _, end in self._episodes), default=None),
            ended_at=self._clock(),
            busy=self._busy(),
            seconds=self.seconds,
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


_WAITING = ("push", "barrier", "update", "closed")


@dataclass
class _Sheet:
    slots: int
    until: float
    unbooked: float = 0.0
    """Slot-seconds up to ``until`` that are not booked: those of episodes under way come when these are over."""
    was_away: bool = False

    def go_on(self, now: float) -> None:
        self.unbooked += self.slots * (now - self.until)
        self.until = now


class SlotTimeLedger:
    """Adds up what worker programs say of their slots' time, and what nobody can tell because a worker was lost.

    ``clock`` gives monotonic seconds.
    """

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._sheets: dict[str, _Sheet] = {}

    def joined(self, worker: str, slots: int) -> None:
        """Begins the account of a worker, or goes on with it."""
        sheet = self._sheets.setdefault(worker, _Sheet(slots, self._clock()))
        sheet.go_on(self._clock())
        sheet.slots = slots

    def lost(self, worker: str) -> None:
        """Notes that seconds may be missing until the worker reports them again."""
        if worker in self._sheets:
            self._sheets[worker].was_away = True

    def left(self, worker: str) -> None:
        """Closes the account of a worker that was let go."""
        self._sheets.pop(worker, None)

    def book(self, worker: str, told: Mapping[str, float] | None = None) -> dict[str, float]:
        """Returns the worker's slot-seconds by activity since the last call; ``told`` is None while it is away.

        They are never more than slots × wall-clock: what is too much passed without a link, and was booked as that, or
        before this host began. Once the worker was lost they are as many: what is missing was ``away``.
        """
        sheet = self._sheets.get(worker)
        if sheet is None:
            return dict(told or {})
        sheet.go_on(self._clock())
        booked = _reduced(told or {}, sheet.unbooked)
        if sheet.was_away:
            missing = sheet.unbooked - sum(booked.values())
            booked |= {"away": missing} if missing > 0 else {}
            sheet.was_away = told is None
        sheet.unbooked = max(0.0, sheet.unbooked - sum(booked.values()))
        return booked


def _reduced(told: Mapping[str, float], whole: float) -> dict[str, float]:
    """Returns ``told`` without what exceeds ``whole``: first waits, which is what slots without a host come to."""
    waits = {name: told[name] for name in _WAITING if name in told}
    others = {name: seconds for name, seconds in told.items() if name not in waits}
    waits = _scaled(waits, max(0.0, whole - sum(others.values())))
    return {**_scaled(others, whole), **waits}


def _scaled(seconds: Mapping[str, float], most: float) -> dict[str, float]:
    """Returns ``seconds``, reduced in proportion if they are more than ``most`` together."""
    total = sum(seconds.values())
    return {name: each * min(1.0, most / total) for name, each in seconds.items()} if total > 0 < most else {}
