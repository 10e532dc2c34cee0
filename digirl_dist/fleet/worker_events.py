"""What the host learns of its workers: their own messages, and what happens on the way to them, until it is read."""

from __future__ import annotations

import threading
from collections import OrderedDict
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from digirl_dist.errors import WorkerError
from digirl_dist.fleet.ledger import Ledger
from digirl_dist.protocol.messages import EpisodeManifest, Heartbeat, Told
from digirl_dist.tasks import Key
from digirl_dist.trajectory import Trajectory


@dataclass(frozen=True)
class _OfWorker:
    worker: str


@dataclass(frozen=True)
class Said(_OfWorker):
    """The worker program said this; Working comes once for each connection."""

    message: Told


@dataclass(frozen=True)
class PolicyLoaded(_OfWorker):
    """The worker acts with this policy version; what it took to push it."""

    version: int
    push_s: float
    push_bytes: int


@dataclass(frozen=True)
class Pulled(_OfWorker):
    """A checked episode lies at ``path`` on the host, not yet landed."""

    manifest: EpisodeManifest
    trajectory: Trajectory
    path: Path
    pull_s: float


@dataclass(frozen=True)
class PullRefused(_OfWorker):
    """An episode's file was altered, truncated, foreign or gone."""

    manifest: EpisodeManifest
    reason: str


@dataclass(frozen=True)
class LeasesLost(_OfWorker):
    """The program holds these tickets no longer, and never said how they ended."""

    keys: Sequence[Key]


@dataclass(frozen=True)
class ClaimsRefused(_OfWorker):
    """The program claims to hold tickets that it was never leased, or no longer; it is told to drop them."""

    keys: Sequence[Key]


@dataclass(frozen=True)
class Lost(_OfWorker):
    """The worker is gone; it comes back by itself unless this is final."""

    error: WorkerError
    out_s: float | None = None
    """How long it is out of service, for what it did; None: it is not."""
    is_final: bool = False


@dataclass(frozen=True)
class Connecting(_OfWorker):
    """The host is busy with getting the worker to work; it gives up after ``limit_s``.

    None: the worker waits in a queue of others, for as long as that takes.
    """

    doing: str
    limit_s: float | None
    is_installing: bool = False
    """Whether it is waited for however long the fleet may be without a worker that can run anything."""


@dataclass(frozen=True)
class Added(_OfWorker):
    """The fleet has this worker as well; Working tells when it works."""


@dataclass(frozen=True)
class Leaving(_OfWorker):
    """The worker is to finish what it holds and to go."""


@dataclass(frozen=True)
class Relayed(_OfWorker):
    """The worker fetched ``size`` bytes of tensors from another one of its site; ``reason``: why not all of them."""

    source: str
    size: int
    seconds: float
    reason: str


@dataclass(frozen=True)
class DiskFull(_OfWorker):
    """An episode of the worker waits for space on the host's disk."""

    reason: str


@dataclass(frozen=True)
class Throttled(_OfWorker):
    """The worker costs the host more than one worker may: its messages, or its episodes, wait."""

    reason: str


@dataclass(frozen=True)
class RosterRefused:
    """The workers that the configuration names now cannot be used; the fleet stays as it is."""

    reason: str


Words = Said | PolicyLoaded | Pulled | PullRefused | LeasesLost | ClaimsRefused
"""What a worker said, or sent, and what followed from it."""
WorkerEvent = Words | Lost | Connecting | Relayed | DiskFull | Throttled | Added | Leaving | RosterRefused


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

    def get(self, timeout_s: float) -> WorkerEvent | None:
        """Returns the next event; None if none comes in that time, or ``wake`` was called."""
        with self._changed:
            self._changed.wait_for(lambda: self._is_woken or self._entries, timeout_s)
            self._is_woken = False
            if not self._entries:
                return None
            _, entry = self._entries.popitem(last=False)
            entry.count(-1)
            return entry.event

    def wake(self) -> None:
        """Has the reader return."""
        with self._changed:
            self._is_woken = True
            self._changed.notify()

    def __iter__(self) -> Iterator[WorkerEvent]:
        """Yields what waits, in order."""
        return (entry.event for entry in self._entries.values())

    def __len__(self) -> int:
        return len(self._entries)


def _coalesced(event: WorkerEvent) -> tuple[str, type] | None:
    """Returns what events have in common of which only the newest is of use."""
    match event:
        case Said(worker, Heartbeat()) | Connecting(worker):
            return worker, type(event)
    return None
