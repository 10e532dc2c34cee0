"""When a worker that was lost is tried again: losses and the time go in, a pause comes out."""

from __future__ import annotations

from collections.abc import Callable

from digirl_dist.errors import WorkerError
from digirl_dist.fleet.session import ProgramSilent
from digirl_dist.settings import LimitSettings


class Reconnecting:
    """Back-off between connections to one worker. ``draw(low, high)`` keeps a fleet from coming back all at once."""

    def __init__(self, limits: LimitSettings, draw: Callable[[float, float], float]) -> None:
        self._limits = limits
        self._draw = draw
        self._losses = 0
        self._connected_at = 0.0
        self.replace = False
        """Whether the next connection must end a program that does not answer."""

    def connecting(self, now: float) -> None:
        self._connected_at = now

    def lost(self, error: WorkerError, now: float) -> float | None:
        """Returns in how many seconds to try again; None: never."""
        self.replace = isinstance(error, ProgramSilent)
        if error.fatal:
            return None
        was_steady = now - self._connected_at > self._limits.steady_s
        self._losses = 0 if was_steady else self._losses + 1
        longest = min(self._limits.back_off_max_s, self._limits.back_off_s * 2.0**self._losses)
        return self._draw(longest / 2, longest)
