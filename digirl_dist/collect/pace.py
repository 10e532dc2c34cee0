"""How fast the workers are, and what follows from it at the tail of an iteration."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass

_WEIGHT = 0.1
_OVERDUE = 1.1
"""An episode is overdue when it takes so many times as long as usual: all vary a little."""


@dataclass(frozen=True)
class Drain:
    """How workers empty the queue: the mean seconds of each one's episodes, and the episodes per second of all."""

    paces: Mapping[str, float]
    rate: float
    fastest: float

    def seconds(self, queued: int) -> float:
        """Returns after how many seconds the queue is expected to be empty and the fastest worker to have ended."""
        return queued / self.rate + self.fastest if self.rate else 0.0

    def is_in_time(self, worker: str, queued: int) -> bool:
        """Returns whether what the worker begins now is expected to end with the rest of the queue, or soon after.

        The fastest worker is always in time, so somebody takes every ticket.
        """
        return worker not in self.paces or self.paces[worker] <= self.seconds(queued)


class Pace:
    """Mean seconds of each worker's episodes, newer ones weighing more; of all workers where one has none yet."""

    def __init__(self) -> None:
        self._means: dict[str, float] = {}
        self._total = 0.0

    def ended(self, worker: str, seconds: float) -> None:
        """Notes the length of an episode; values that are none are ignored."""
        if 0 <= seconds < float("inf"):
            before = self._means.get(worker)
            mean = seconds if before is None else before + _WEIGHT * (seconds - before)
            self._means[worker] = mean
            self._total += mean - (before or 0.0)

    def of(self, worker: str) -> float | None:
        """Returns the worker's mean; None as long as no episode has ended anywhere."""
        if worker in self._means or not self._means:
            return self._means.get(worker)
        return self._total / len(self._means)

    def drain(self, slots: Mapping[str, int]) -> Drain:
        """Returns how fast workers with these slots in service empty the queue together."""
        paces = {name: pace for name in slots if (pace := self.of(name))}
        rate = sum(slots[name] / pace for name, pace in paces.items())
        return Drain(paces, rate, min(paces.values(), default=0.0))

    def is_overdue(self, there: str, age_s: float) -> bool:
        """Returns whether an episode takes so much longer than usual on its worker that it may hang."""
        return age_s > _OVERDUE * (self.of(there) or math.inf)

    def gain(self, there: str, age_s: float, here: str) -> float:
        """Returns the seconds by which a duplicate begun now on ``here`` should beat its original on ``there``.

        The original is expected to take as long as usual, a duplicate of it what that is on its own worker. Of an
        episode that is overdue nothing can be expected (it may hang), so a duplicate is worth its age.
        """
        usual, usual_here = self.of(there), self.of(here)
        if not usual or usual_here is None:
            return 0.0
        return age_s if self.is_overdue(there, age_s) else usual - age_s - usual_here
