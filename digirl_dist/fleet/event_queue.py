"""What happened to workers and nobody has read: bounded for each worker, however long nobody reads."""

from __future__ import annotations

import threading
from collections import Counter, OrderedDict, deque
from collections.abc import Callable, Iterator
from dataclasses import dataclass

from digirl_dist.fleet.ledger import Ledger
from digirl_dist.fleet.worker_events import Connecting, Said, WorkerEvent
from digirl_dist.protocol.messages import Heartbeat

_OVERHEAD = 1 << 10
"""Bytes that an event takes beside what its message has."""


@dataclass(frozen=True)
class _Entry:
    event: WorkerEvent
    size: int
    ledger: Ledger | None

    def count(self, sign: int) -> None:
        """Notes in the ledger that it waits, or by -1 that it does no more."""
        if self.ledger is not None:
            self.ledger.keep("unread", sign * self.size)


Leaves = Callable[[WorkerEvent, bool], bool]
"""Called with an event, and whether earlier ones of its worker were left; returns whether it is left as well."""


class EventQueue:
    """Events in order, for one reader. Of a worker's heartbeats only the newest waits, and of what it connects for.

    Whoever puts more than that asks the worker's ledger first, in which all that waits is noted.
    """

    def __init__(self) -> None:
        self._changed = threading.Condition()
        self._entries: OrderedDict[int, _Entry] = OrderedDict()
        self._newest: dict[tuple[str, type], int] = {}
        """Where the newest heartbeat, or attempt to connect, of a worker waits, or did."""
        self._put = 0
        self._left: deque[_Entry] = deque()
        """What a reader has left behind for one who leaves nothing."""
        self._left_of: Counter[str] = Counter()
        """How many of these are a worker's."""
        self._is_woken = False

    def put(self, event: WorkerEvent, size: int = 0, ledger: Ledger | None = None) -> None:
        """Adds an event of so many bytes, which the worker's ledger, if there is one, counts until it is read."""
        entry = _Entry(event, size + _OVERHEAD, ledger)
        with self._changed:
            entry.count(1)
            number = self._put
            if (kind := _coalesced(event)) is not None:
                before = self._newest.get(kind, -1)
                if before in self._entries:
                    self._entries[before].count(-1)
                    if isinstance(event, Said):  # a heartbeat tells of now: its place among the others does not matter
                        number = before
                    else:
                        del self._entries[before]
                self._newest[kind] = number
            self._entries[number] = entry
            self._put = max(self._put, number + 1)
            self._changed.notify()

    def get(self, timeout_s: float, leaves: Leaves | None = None) -> WorkerEvent | None:
        """Returns the next event; None if none comes in that time, or ``wake`` was called.

        Events for which ``leaves`` is true stay for a reader who leaves nothing.
        """
        found: list[_Entry] = []

        def came() -> bool:
            if not found and (entry := self._next(leaves)) is not None:
                found.append(entry)
            return self._is_woken or bool(found)

        with self._changed:
            self._changed.wait_for(came, timeout_s)
            self._is_woken = False
            if not found:
                return None
            found[0].count(-1)
            return found[0].event

    def wake(self) -> None:
        """Has the reader return."""
        with self._changed:
            self._is_woken = True
            self._changed.notify()

    def __iter__(self) -> Iterator[WorkerEvent]:
        """Yields what waits, in order."""
        return (entry.event for entry in (*self._left, *self._entries.values()))

    def __len__(self) -> int:
        return len(self._left) + len(self._entries)

    def _next(self, leaves: Leaves | None) -> _Entry | None:
        if leaves is None and self._left:
            entry = self._left.popleft()
            self._left_of[_worker(entry)] -= 1
            return entry
        while self._entries:
            _, entry = self._entries.popitem(last=False)
            is_later = self._left_of[_worker(entry)] > 0
            if leaves is None or not leaves(entry.event, is_later):
                return entry
            self._left.append(entry)
            self._left_of[_worker(entry)] += 1
        return None


def _coalesced(event: WorkerEvent) -> tuple[str, type] | None:
    """Returns what events have in common of which only the newest is of use."""
    match event:
        case Said(worker, Heartbeat()) | Connecting(worker):
            return worker, type(event)
    return None


def _worker(entry: _Entry) -> str:
    return getattr(entry.event, "worker", "")
