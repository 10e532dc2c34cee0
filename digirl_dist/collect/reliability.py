"""How far each worker may be relied on: what it brought home, and what it lost in a row."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Mapping

from digirl_dist.settings import LimitSettings
from digirl_dist.settings.workers import back_off
from digirl_dist.tasks import Key
from digirl_dist.types import Clock

_BROUGHT = 2
"""Tickets that a worker may hold for each episode that it has brought home, beyond its share."""


class Reliability:
    """Bounds what a worker can hold up: one that chose its own number of slots, and one whose episodes all fail."""

    def __init__(self, limits: LimitSettings, clock: Clock) -> None:
        self._limits = limits
        self._clock = clock
        self._landed: Counter[str] = Counter()
        self._failed: dict[str, set[Key]] = {}
        self._most_held: Counter[str] = Counter()
        self._next_at: dict[str, float] = {}
        self._suspects: set[str] = set()
        self._defects: Counter[str] = Counter()
        self._defects_since = math.inf

    def landed(self, worker: str) -> None:
        """An episode of the worker is safe on the host."""
        self._landed[worker] += 1
        self._suspects.discard(worker)
        self._defects.clear()
        self._defects_since = math.inf
        self._begin_anew(worker)

    def holds(self, worker: str, count: int) -> None:
        """The worker holds so many tickets at once."""
        self._most_held[worker] = max(self._most_held[worker], count)

    def failed(self, worker: str, key: Key, slots: int) -> bool:
        """Notes a ticket that failed on the worker and on no other; returns whether those in a row are too many.

        They are once its slots have lost more than ``slot_failures`` each, when an honest program has closed them all.
        Each wave of them makes the worker wait longer for its next ticket.
        """
        row = self._failed.setdefault(worker, set())
        row.add(key)
        width = max(1, min(slots, self._most_held[worker]))
        waves = len(row) // width
        if waves:
            pause_s = back_off(self._limits.back_off_s, self._limits.back_off_max_s, waves - 1)
            self._next_at[worker] = self._clock() + pause_s
        return len(row) > self._limits.slot_failures * width

    def suspect(self, worker: str) -> None:
        """Notes an offence: the worker gets one ticket at a time until an episode of its has landed."""
        self._suspects.add(worker)
        self._most_held.pop(worker, None)
        self._begin_anew(worker)

    def is_suspect(self, worker: str) -> bool:
        return worker in self._suspects

    def defect(self, worker: str, is_there: Mapping[str, bool]) -> bool:
        """Notes that the host failed at what the worker said; ``is_there`` tells of all workers whether they are.

        Returns whether that is no worker's doing: since an episode landed anywhere, it has happened with each as often
        as takes one out of service; or for ``no_worker_s``, with all that are there.
        """
        now = self._clock()
        self._defects[worker] += 1
        self._defects_since = min(self._defects_since, now)
        if all(self._defects[name] >= self._limits.worker_offences for name in is_there):
            return True
        has_lasted = now - self._defects_since > self._limits.no_worker_s
        return has_lasted and all(self._defects[name] for name, there in is_there.items() if there)

    def _begin_anew(self, worker: str) -> None:
        self._failed.pop(worker, None)
        self._next_at.pop(worker, None)

    def may_take(self, worker: str) -> bool:
        """Returns whether its pause is over."""
        return self._clock() >= self._next_at.get(worker, -math.inf)

    def most(self, worker: str, open_tickets: int, workers: int) -> int:
        """Returns how many tickets a worker that chose its own number of slots may hold, as one of ``workers``."""
        return math.ceil(open_tickets / max(1, workers)) + _BROUGHT * self._landed[worker]
