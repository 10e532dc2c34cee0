"""What each worker's episodes have cost the host: none may cost several times as much as those of every other worker.

An absolute limit for each episode leaves room for thousands of the largest. What is usual is known of the run's other
workers; a worker that is never there alone with one other can make neither the others look expensive nor itself cheap.
"""

from __future__ import annotations

import threading
from collections import defaultdict
from dataclasses import dataclass

from digirl_dist.errors import TrajectoryError

_FREE_BYTES = 64 << 20
_FREE_S = 10.0
_TIMES = 4
"""How many times as much as those of the costliest other worker its episodes may cost, beyond what is free."""
_MOST_KNOWN = 4
"""Episodes of a worker from which on it is known what they cost."""
_ENOUGH_OTHERS = 2


@dataclass
class _Cost:
    episodes: int = 0
    memory: int = 0
    seconds: float = 0.0


class Shares:
    """Adds up the memory and the processor time that episodes of each worker took, from the first on."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._costs: defaultdict[str, _Cost] = defaultdict(_Cost)

    def check(self, worker: str, memory: int) -> None:
        """Raises TrajectoryError if an episode that takes ``memory`` bytes is more than the worker's share."""
        with self._lock:
            own = self._costs[worker]
            known = [cost for name, cost in self._costs.items() if name != worker and cost.episodes >= _MOST_KNOWN]
            if len(known) < _ENOUGH_OTHERS:
                return
            count = _TIMES * (own.episodes + 1)
            most_bytes = _FREE_BYTES + count * max(cost.memory / cost.episodes for cost in known)
            most_s = _FREE_S + count * max(cost.seconds / cost.episodes for cost in known)
            found = f"its {own.episodes} episodes"
            others = f"{_TIMES} times what as many episodes of any other worker do"
            if own.memory + memory > most_bytes:
                took = f"{(own.memory + memory) >> 20} MiB of the host's memory"
                raise TrajectoryError(f"{found} and this one take {took}, more than {others}")
            if own.seconds > most_s:
                raise TrajectoryError(f"{found} took {own.seconds:.0f} s of the host to check, more than {others}")

    def kept(self, worker: str, memory: int) -> None:
        """Adds an episode that passed its check."""
        with self._lock:
            own = self._costs[worker]
            own.episodes += 1
            own.memory += memory

    def checked(self, worker: str, seconds: float) -> None:
        """Adds the processor time of a check, whatever it found."""
        with self._lock:
            self._costs[worker].seconds += seconds
