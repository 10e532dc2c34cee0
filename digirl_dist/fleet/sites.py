"""Which worker of a site gets tensors from which other one. There is no connection, file or clock in here."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator, Set
from dataclasses import dataclass, replace

_FETCHERS = 4
"""Workers that fetch from one at the same time: the first of a site serves so many, and each of them as many more."""
_BLAMED_BY = 2
"""So many workers must fail with a source before others do not try it any more."""
MEASURABLE = 1 << 22
_MEASURED_FOR_S = 600.0
_STALL_S = 15.0
_LINES, _LINES_PER_S = 100.0, 10.0


class LinkRate:
    """Bytes per second of a link's last large transfer, forgotten after a while."""

    def __init__(self) -> None:
        self._rate = 0.0
        self._until = 0.0

    def rate(self) -> float | None:
        return self._rate if time.monotonic() < self._until else None

    def add(self, size: int, seconds: float) -> None:
        """Measures a large transfer; small ones end in the buffers on the way and say nothing."""
        if size >= MEASURABLE and seconds > 0:
            self._rate, self._until = size / seconds, time.monotonic() + _MEASURED_FOR_S


@dataclass
class _Member:
    holds: Set[str] = frozenset()
    """Digests of the tensors that it has, or will have once it is not busy any more."""
    busy: bool = False
    decided: bool = True
    """Whether it is known where it gets them from."""
    source: str | None = None
    """From which worker it fetches; None: from the host."""


class Site:
    """The workers of one site that are connected, and what they get. ``now`` are monotonic seconds. Thread-safe."""

    def __init__(self, quarantine_s: float) -> None:
        """``quarantine_s``: for how long a worker that failed to serve or to fetch does not do so again."""
        self.link = LinkRate()
        """The way from the host to any of them."""
        self._quarantine_s = quarantine_s
        self._members: dict[str, _Member] = {}
        self._no_source: dict[str, float] = {}
        self._no_fetcher: dict[str, float] = {}
        self._blamed: dict[str, set[str]] = {}
        self._lock = threading.Lock()

    def __len__(self) -> int:
        return len(self._members)

    def join(self, worker: str) -> None:
        with self._lock:
            self._members[worker] = _Member()

    def leave(self, worker: str) -> None:
        with self._lock:
            self._members.pop(worker, None)

    def begin(self, worker: str, holds: Set[str]) -> None:
        """The worker is being given tensors, from the host until ``source`` names another one."""
        with self._lock:
            if member := self._members.get(worker):
                self._members[worker] = replace(member, holds=holds, busy=True, decided=False, source=None)

    def end(self, worker: str) -> None:
        """What the worker was being given is there, or lost."""
        with self._lock:
            if member := self._members.get(worker):
                self._members[worker] = replace(member, busy=False, decided=True, source=None)

    def source(self, worker: str, wanted: Set[str], now: float) -> str | None:
        """Returns the worker to fetch from; None: the host. It has the tensors, or gets them from one that does."""
        with self._lock:
            member = self._members.get(worker)
            if member is None:
                return None
            member.source, member.decided = None, True
            if now < self._no_fetcher.get(worker, now):
                return None
            able = [
                (depth, self._fetchers(name), name)
                for name, each in self._members.items()
                if each.decided
                and wanted <= each.holds
                and now >= self._no_source.get(name, now)
                and (depth := self._depth(name, worker)) is not None
                and self._fetchers(name) < _FETCHERS
            ]
            member.source = min(able)[2] if able else None
            return member.source

    def gets_more(self, source: str) -> bool | None:
        """Returns whether the worker is still being given tensors itself; None if it is not connected any more."""
        member = self._members.get(source)
        return None if member is None else member.busy

    def cannot_serve(self, source: str, now: float) -> None:
        """Nobody can fetch from this worker."""
        with self._lock:
            self._no_source[source] = now + self._quarantine_s

    def failed(self, worker: str, source: str, now: float) -> None:
        """A fetch failed, whoever is to blame: the worker gets its tensors from the host for a while."""
        with self._lock:
            self._no_fetcher[worker] = now + self._quarantine_s
            blamed = self._blamed.setdefault(source, set())
            blamed.add(worker)
            if len(blamed) >= _BLAMED_BY:
                del self._blamed[source]
                self._no_source[source] = now + self._quarantine_s

    def _fetchers(self, source: str) -> int:
        return sum(member.source == source for member in self._members.values())

    def _depth(self, name: str, worker: str) -> int | None:
        """Returns how many others the tensors pass before ``name`` has them; None if it waits for ``worker``."""
        passed = list(self._sources(name))
        return None if worker in passed or passed[-1] not in self._members else len(passed)

    def _sources(self, name: str) -> Iterator[str]:
        """Yields the worker, the one that it fetches from, and so on."""
        source: str | None = name
        while source is not None:
            yield source
            member = self._members.get(source)
            source = None if member is None else member.source


class FetchLimits:
    """Bounds one fetch of ``whole`` bytes; ``now`` are monotonic seconds."""

    def __init__(self, whole: int, now: float) -> None:
        self._whole = whole
        self._lines_left = _LINES - _LINES_PER_S * now
        self._size = 0
        self._moved_at = now
        self._complete_at = now
        self._before = 0

    def problem(self, size: int, source_gets_more: bool, floor: float, now: float) -> str | None:
        """Returns why to give up after ``size`` bytes in all; None: it goes on. Called for each line of the worker.

        Time counts while the source has all that it passes on: ``floor`` bytes per second must move then.
        """
        if size > self._whole:
            return f"it says that {size} bytes came of {self._whole}"
        self._lines_left -= 1
        if self._lines_left + _LINES_PER_S * now < 0:
            return "it tells of it again and again"
        if source_gets_more:
            self._complete_at, self._before = now, size
        if size > self._size or source_gets_more:
            self._size, self._moved_at = size, now
        if now - self._moved_at > _STALL_S:
            return f"nothing came for {_STALL_S:g} s"
        if size - self._before < floor * (now - self._complete_at - _STALL_S):
            return "it is slower than the host itself would be"
        return None
