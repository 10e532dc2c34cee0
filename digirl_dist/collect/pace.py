"""How fast the workers are, and what follows from it at the tail of an iteration."""

from __future__ import annotations

from collections.abc import Mapping

_WEIGHT = 0.1
_OVERDUE = 1.1
"""An episode is overdue when it takes so many times as long as usual: all vary a little."""


class Pace:
    """Mean seconds of each worker's episodes, newer ones weighing more; of all workers where one has none yet."""

    def __init__(self) -> None:
        self._means: dict[str, float] = {}

    def ended(self, worker: str, seconds: float) -> None:
        """Notes the length of an episode; values that are none are ignored."""
        if 0 <= seconds < float("inf"):
            before = self._means.get(worker, seconds)
            self._means[worker] = before + _WEIGHT * (seconds - before)

    def of(self, worker: str) -> float | None:
        """Returns the worker's mean; None as long as no episode has ended anywhere."""
        if worker in self._means or not self._means:
            return self._means.get(worker)
        return sum(self._means.values()) / len(self._means)

    def is_in_time(self, worker: str, queued: int, slots: Mapping[str, int]) -> bool:
        """Returns whether what the worker begins now is expected to end with the rest of the queue, or soon after.

        ``slots`` are those in service of each worker. The fastest of them is always in time, so somebody takes
        every ticket.
        """
        pace = self.of(worker)
        if not pace or worker not in slots:
            return True
        return pace <= self.drained_s(queued, slots)

    def drained_s(self, queued: int, slots: Mapping[str, int]) -> float:
        """Returns after how many seconds the queue is expected to be empty and the fastest worker to have ended."""
        paces = {name: pace for name in slots if (pace := self.of(name))}
        if not paces:
            return 0.0
        return queued / sum(slots[name] / pace for name, pace in paces.items()) + min(paces.values())

    def gain(self, there: str, age_s: float, here: str) -> float:
        """Returns the seconds by which a duplicate begun now on ``here`` should beat its original on ``there``.

        The original is expected to take as long as usual, a duplicate of it what that is on its own worker. Of an
        episode that is overdue nothing can be expected (it may hang), so a duplicate is worth its age.
        """
        usual, usual_here = self.of(there), self.of(here)
        if not usual or usual_here is None:
            return 0.0
        return age_s if age_s > _OVERDUE * usual else usual - age_s - usual_here
