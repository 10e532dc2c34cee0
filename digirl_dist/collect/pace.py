"""How long episodes take: on each worker, and of each task."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterable, Mapping

from digirl_dist.tasks import Ticket
from digirl_dist.types import Json

_WEIGHT = 0.1
_SHORTEST_S, _LONGEST_S = 1e-6, 1e9
"""No episode is shorter or longer; what a worker claims beyond counts as unknown."""
_OVERDUE = 1.1
"""An episode is overdue when it takes so many times as long as usual: all vary a little."""


class Pace:
    """Mean seconds of each worker's episodes, newer ones weighing more; of all workers where one has none yet."""

    def __init__(self) -> None:
        self._means: dict[str, float] = {}
        self._total = 0.0

    def ended(self, worker: str, seconds: float) -> None:
        """Notes the length of an episode; values that are none are ignored."""
        if _SHORTEST_S <= seconds <= _LONGEST_S:
            before = self._means.get(worker)
            mean = seconds if before is None else before + _WEIGHT * (seconds - before)
            self._means[worker] = mean
            self._total += mean - (before or 0.0)

    def of(self, worker: str) -> float | None:
        """Returns the worker's mean; None as long as no episode has ended anywhere."""
        if worker in self._means or not self._means:
            return self._means.get(worker)
        return self._total / len(self._means)

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


_TASK_WEIGHT = 0.3
_SLOW = 1.5
_MOST_TASKS = 10_000
_FURTHEST = math.log(100.0)
"""A single episode says no more than this, whatever its worker claims."""
_MOST = math.log(_LONGEST_S)
"""Nor do all together, so that no exponential overflows or is 0."""


class Lengths:
    """How long an episode takes: what is usual on its worker, times the length of its task.

    Both are geometric means, newer episodes weighing more, so that neither a slow worker nor one that is given short
    tasks distorts the other.
    """

    def __init__(self, before: Iterable[Mapping[str, Json]] = ()) -> None:
        """``before`` are events, of which those of episodes count."""
        self._workers: dict[str, float] = {}
        """Logarithm of the seconds that a task of length 1 takes there."""
        self._tasks: dict[str, float] = {}
        """Logarithm of each task's length."""
        self._counts: Counter[str] = Counter()
        for event in before:
            match event:
                case {"event": "episode", "worker": str(worker), "task": str(task), "seconds": float(seconds)}:
                    self.ended(worker, task, seconds)

    def ended(self, worker: str, task: str, seconds: float) -> None:
        """Notes the length of an episode; values that are none are ignored."""
        if not _SHORTEST_S <= seconds <= _LONGEST_S:
            return
        self._counts[worker] += 1
        usual, length = self._workers.get(worker), self._tasks.pop(task, None)
        if usual is None:
            usual = math.log(seconds) - (length or 0.0)
        off = math.log(seconds) - usual - (length or 0.0)
        off = max(-_FURTHEST, min(off, _FURTHEST))
        weight = max(_WEIGHT, 1 / self._counts[worker])
        length = (length or 0.0) + (1 - weight) * off * (1.0 if length is None else _TASK_WEIGHT)
        self._workers[worker] = max(-_MOST, min(usual + weight * off, _MOST))
        self._tasks[task] = max(-_MOST, min(length, _MOST))
        if len(self._tasks) > _MOST_TASKS:
            del self._tasks[next(iter(self._tasks))]

    def of(self, task: str) -> float:
        """Returns the length of a task; 1 if nothing is known of it."""
        return math.exp(self._tasks.get(task, 0.0))

    def seconds(self, worker: str, task: str) -> float | None:
        """Returns how long its episode should take there; None if nothing is known of the worker."""
        usual = self._workers.get(worker)
        return None if usual is None else math.exp(usual) * self.of(task)

    def slow(self, slots: Mapping[str, int], work: float) -> dict[str, float]:
        """Returns the workers that are much slower than the fastest of those with slots in service, each with the
        seconds after which all together should have done a queue of length ``work``."""
        usual = {name: math.exp(self._workers[name]) for name in slots if name in self._workers}
        rate = sum(slots[name] / each for name, each in usual.items())
        return {name: work / rate for name, each in usual.items() if each > _SLOW * min(usual.values())}

    def longest_first(self, tickets: Iterable[Ticket]) -> list[Ticket]:
        """Returns the tickets by their tasks' lengths, in their order where these are equal."""
        return sorted(tickets, key=lambda ticket: -self._tasks.get(ticket.task.id, 0.0))
