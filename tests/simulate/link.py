"""The way between the host and one machine, and one connection over it, as TCP behaves below SSH.

Lines of one direction arrive in order; the two directions, the files and other machines overtake each other.
"""

from __future__ import annotations

from collections.abc import Callable
from enum import Enum
from random import Random

from simulate.world import World

Receive = Callable[[bytes], object]


class Way(Enum):
    """What becomes of a line: it arrives; it waits until the link is mended; something on the way swallows it."""

    OPEN = "open"
    STALLED = "stalled"
    SWALLOWS = "swallows"


class Link:
    """One machine's network. ``rate`` are bytes per second of files, ``latency_s`` and ``jitter_s`` those of lines."""

    def __init__(
        self, world: World, rng: Random, latency_s: float = 0.01, jitter_s: float = 0.0, rate: float = 1e8
    ) -> None:
        self.world, self.rng, self.latency_s, self.jitter_s, self.rate = world, rng, latency_s, jitter_s, rate
        self.to_host = self.to_program = Way.OPEN
        self.standing: list[Wire] = []
        """Both directions of the connection that stands."""

    @property
    def answers(self) -> bool:
        """Whether a round trip succeeds, whoever serves it."""
        return self.to_host is self.to_program is Way.OPEN

    def delay_s(self) -> float:
        return self.latency_s + (self.rng.random() * self.jitter_s if self.jitter_s else 0.0)

    def mend(self) -> None:
        """Opens both directions; what was stalled arrives."""
        self.to_host = self.to_program = Way.OPEN
        for wire in list(self.standing):
            wire.flow()


class Wire:
    """One direction of a connection. A connection of which something was swallowed breaks with the next line."""

    def __init__(self, link: Link, way: Callable[[], Way], receive: Receive, broken: Callable[[], object]) -> None:
        self._link, self._way, self._receive, self._broken = link, way, receive, broken
        self._next_at = 0.0
        self._stalled: list[bytes] = []
        self._torn = False
        self.closed = False
        link.standing.append(self)

    def send(self, line: bytes) -> None:
        world = self._link.world
        self._next_at = max(self._next_at, world.now + self._link.delay_s())
        world.later(self._next_at - world.now, lambda: self._arrive(line))

    def flow(self) -> None:
        stalled, self._stalled = self._stalled, []
        for line in stalled:
            self._arrive(line)

    def break_now(self) -> None:
        """Both ends notice it at once."""
        if not self.closed:
            self._broken()

    def close(self) -> None:
        self.closed = True
        if self in self._link.standing:
            self._link.standing.remove(self)

    def _arrive(self, line: bytes) -> None:
        way = self._way()
        if self.closed:
            return
        if way is Way.SWALLOWS:
            self._torn = True
        elif way is Way.STALLED or self._stalled:
            self._stalled.append(line)
        elif self._torn:
            self._broken()
        else:
            self._receive(line)
