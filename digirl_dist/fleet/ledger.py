"""What one worker may cost this host: seconds of its processor, bytes that wait, and a share of all episodes' cost.

An absolute limit for each episode leaves room for thousands of the largest. What is usual is known of the run's other
workers; a worker that is never there alone with one other can make neither the others look expensive nor itself cheap.
"""

from __future__ import annotations

import threading
from collections import defaultdict
from dataclasses import dataclass
from typing import Literal

from digirl_dist.errors import TrajectoryError

_FREE_BYTES = 64 << 20
_FREE_S = 10.0
_TIMES = 4
"""How many times as much as those of the costliest other worker its episodes may cost, beyond what is free."""
_MOST_KNOWN = 4
"""Episodes of a worker from which on it is known what they cost."""
_ENOUGH_OTHERS = 2
_CHECKS_AT_ONCE_S = 1.0
_CHECKS_SHARE = 0.05
"""Of one core: what checks of a worker may take beyond what is usual, first at once and then without end."""


@dataclass
class _Cost:
    episodes: int = 0
    memory: int = 0
    seconds: float = 0.0
    owed_s: float = 0.0
    """Seconds beyond what is usual, less what time has forgiven."""
    owed_at: float = 0.0


class Shares:
    """Adds up the memory and the processor time that episodes of each worker took, from the first on.

    A worker whose episodes cost more than is usual waits with the next one, and at last is refused.
    """

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._costs: defaultdict[str, _Cost] = defaultdict(_Cost)

    def check(self, worker: str, memory: int) -> None:
        """Raises TrajectoryError if an episode that takes ``memory`` bytes is more than the worker's share."""
        with self._lock:
            own, known = self._costs[worker], self._known(worker)
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

    def checked(self, worker: str, seconds: float, now: float) -> None:
        """Adds the processor time of a check, whatever it found."""
        with self._lock:
            own, known = self._costs[worker], self._known(worker)
            own.seconds += seconds
            if len(known) >= _ENOUGH_OTHERS:
                usual_s = _TIMES * max(cost.seconds / cost.episodes for cost in known)
                own.owed_s = self._owed_s(own, now) + max(0.0, seconds - usual_s)
                own.owed_at = now

    def wait_s(self, worker: str, now: float) -> float:
        """Returns for how long no episode of the worker is to be checked."""
        with self._lock:
            return max(0.0, self._owed_s(self._costs[worker], now) - _CHECKS_AT_ONCE_S) / _CHECKS_SHARE

    def _known(self, worker: str) -> list[_Cost]:
        """Returns the costs of other workers of which it is known what their episodes cost."""
        return [cost for name, cost in self._costs.items() if name != worker and cost.episodes >= _MOST_KNOWN]

    def _owed_s(self, own: _Cost, now: float) -> float:
        return max(0.0, own.owed_s - _CHECKS_SHARE * (now - own.owed_at))


Kept = Literal["unread", "unchecked"]
"""Events that nobody has read, and files that came and are not checked and durable yet."""

MOST_KEPT: dict[Kept, int] = {"unread": 4 << 20, "unchecked": 32 << 20}
"""Bytes as they travel; a message takes several times as many once it is decoded."""

_SHARE = 0.03
"""Of one core, which a worker's messages may take without end."""
_MOST_S = 1.0
"""Seconds of processor time that they may take at once."""
_PER_TICKET_S = 0.01
"""Seconds that a leased ticket, or an answered request, entitles to."""
_PER_BYTE_S = 5e-9
"""What it takes to read a byte of a message, before it is decoded."""


class Ledger:
    """The account of one worker, whatever connections it has. Asked before anything is decoded or kept.

    Beyond a limit, that worker waits: its stream is not read, and its files are not pulled. Any thread may call.
    """

    def __init__(self) -> None:
        self._changed = threading.Condition()
        self._kept: dict[Kept, int] = dict.fromkeys(MOST_KEPT, 0)
        self._left_s = _MOST_S
        self._at: float | None = None

    def keep(self, what: Kept, size: int) -> None:
        """Notes that so many bytes are kept; negative: are no more."""
        with self._changed:
            self._kept[what] += size
            self._changed.notify_all()

    def keep_once_there_is_room(self, what: Kept, size: int) -> None:
        """Waits until ``size`` more bytes may be kept, and counts them as kept."""
        with self._changed:
            self._changed.wait_for(lambda: self.has_room(what, size))
            self._kept[what] += size

    def has_room(self, what: Kept, size: int = 0) -> bool:
        """Returns whether so many more bytes may be kept; an item on its own always may."""
        with self._changed:
            return self._kept[what] == 0 or self._kept[what] + size < MOST_KEPT[what]

    def earn(self, tickets: int) -> None:
        """Notes tickets that were leased to the worker, or requests that were answered."""
        with self._changed:
            self._left_s = min(_MOST_S, self._left_s + _PER_TICKET_S * tickets)

    def took(self, size: int, seconds: float, now: float) -> None:
        """Notes a message of so many bytes, which took so many seconds of processor time to decode and act on."""
        with self._changed:
            self._refill(now)
            self._left_s -= seconds + _PER_BYTE_S * size

    def debt_s(self, now: float) -> float:
        """Returns for how long no message of the worker is to be read."""
        with self._changed:
            self._refill(now)
            return max(0.0, -self._left_s / _SHARE)

    def _refill(self, now: float) -> None:
        if self._at is not None:
            self._left_s = min(_MOST_S, self._left_s + _SHARE * max(0.0, now - self._at))
        self._at = now
