"""Virtual time, and how a simulated worker is."""

from __future__ import annotations

import heapq
import itertools
from collections.abc import Callable
from dataclasses import dataclass, field

import numpy as np

from digirl_dist.tasks import Key, Ticket
from digirl_dist.trajectory import Observation

RUN = "r1"
SEEN = Observation("seen", None, np.zeros(1, np.float32))


class World:
    """The clock, and what is still to happen."""

    def __init__(self) -> None:
        self.now = 0.0
        self.happened = 0
        self._order = itertools.count()
        self._heap: list[tuple[float, int, Callable[[], None]]] = []

    def clock(self) -> float:
        return self.now

    def later(self, seconds: float, action: Callable[[], None]) -> None:
        heapq.heappush(self._heap, (self.now + seconds, next(self._order), action))

    def advance(self, until: float) -> bool:
        """The next happening up to that time; False if there is none, and the clock stands there."""
        if not self._heap or self._heap[0][0] > until:
            self.now = max(self.now, until)
            return False
        self.now, _, action = heapq.heappop(self._heap)
        self.happened += 1
        action()
        return True


@dataclass
class Behaviour:
    """How a worker's program and link are."""

    slots: int = 4
    episode_s: float = 1.0
    mishears: Callable[[Ticket], bool] = lambda ticket: False
    """Leases that the program drops without a word."""
    forgets: Callable[[Ticket], bool] = lambda ticket: False
    """Episodes that end without a word."""
    claims: list[Key] = field(default_factory=list)
    """Tickets that it says it holds, whatever it was leased."""
