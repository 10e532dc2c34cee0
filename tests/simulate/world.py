"""Virtual time: what is still to happen, and a digest of all that has."""

from __future__ import annotations

import heapq
import itertools
import math
from collections.abc import Callable
from hashlib import blake2b


class HostKilled(BaseException):
    """The host process ends here and now; no code of it may catch this."""


class Violation(BaseException):
    """A promise was broken; no code under test may catch this."""

    def __init__(self, promise: str, detail: str) -> None:
        super().__init__(f"{promise}: {detail}")
        self.promise = promise


class World:
    """The clock, and what is still to happen. Nothing waits: time moves to the next happening."""

    def __init__(self) -> None:
        self.now = 0.0
        self.happened = 0
        self.most = math.inf
        """How many happenings there may be: messages that answer each other for ever do not let time pass."""
        self.lines: list[str] | None = None
        """The trace, if somebody wants to read it."""
        self._digest = blake2b(digest_size=16)
        self._order = itertools.count()
        self._heap: list[tuple[float, int, Callable[[], object]]] = []

    def clock(self) -> float:
        return self.now

    def later(self, seconds: float, action: Callable[[], object]) -> None:
        heapq.heappush(self._heap, (self.now + seconds, next(self._order), action))

    def advance(self, until: float) -> bool:
        """Does the next thing that happens up to that time. False if there is none; the clock then stands there."""
        if not self._heap or self._heap[0][0] > until:
            self.now = max(self.now, until)
            return False
        at, _, action = heapq.heappop(self._heap)
        self.now = max(self.now, at)
        self.happened += 1
        if self.happened > self.most:
            raise Violation("progress", f"{self.happened} happenings in {self.now:.0f} s")
        action()
        return True

    def sleep(self, seconds: float) -> None:
        """Lets everything happen that lies in the next seconds."""
        until = self.now + seconds
        while self.advance(until):
            pass

    def trace(self, place: str, what: bytes) -> None:
        """Adds a line to the trace: two runs of one scenario have equal digests."""
        line = b"%.6f %s %s\n" % (self.now, place.encode(), what)
        self._digest.update(line)
        if self.lines is not None:
            self.lines.append(line.decode(errors="replace"))

    @property
    def digest(self) -> str:
        """The digest of the trace so far."""
        return self._digest.hexdigest()
