"""When a worker that was lost is tried again: losses and the time go in, a pause comes out."""

from __future__ import annotations

from collections.abc import Callable

from digirl_dist.errors import HandlingError, MisconductError, TooSlowError, WorkerError
from digirl_dist.fleet.session import ProgramDeaf, ProgramSilent
from digirl_dist.settings import LimitSettings
from digirl_dist.settings.workers import back_off


class Reconnecting:
    """Back-off between connections to one worker. ``draw(low, high)`` keeps a fleet from coming back all at once."""

    def __init__(self, limits: LimitSettings, draw: Callable[[float, float], float]) -> None:
        self._limits = limits
        self._draw = draw
        self._losses = 0
        self._connected_at = 0.0
        self._was_let_in = self._is_let_in = False
        self._has_brought = False
        self._offences: list[float] = []
        self.is_out_of_service = False
        """Whether the pause is for what the worker did, rather than for the link to it."""
        self.replace = False
        """Whether the next connection must end a program that does not answer."""

    def connecting(self, now: float) -> None:
        self._connected_at, self._is_let_in = now, False

    def attached(self) -> None:
        """The machine let this host in, and has the program."""
        self._was_let_in = self._is_let_in = True

    def brought(self) -> None:
        """An episode came from there, and passed the checks: from now on, whatever goes wrong may pass."""
        self._has_brought = True

    def lost(self, error: WorkerError, now: float) -> float | None:
        """Returns in how many seconds to try again; None: never."""
        self.replace = isinstance(error, ProgramSilent)
        self.is_out_of_service = not error.fatal and self._has_offended(error, now)
        if error.fatal:
            return self._limits.back_off_max_s if self._may_pass else None
        if self.is_out_of_service:
            return self._limits.quarantine_s
        was_steady = now - self._connected_at > self._limits.steady_s
        self._losses = 0 if was_steady else self._losses + 1
        longest = back_off(self._limits.back_off_s, self._limits.back_off_max_s, self._losses)
        return self._draw(longest / 2, longest)

    @property
    def _may_pass(self) -> bool:
        """Whether it failed at what it could do before: a directory of users, a disk or memory may be away for long."""
        return self._has_brought or (self._was_let_in and not self._is_let_in)

    def _has_offended(self, error: WorkerError, now: float) -> bool:
        """Returns whether this is one offence too many; after its time out of service, a single one more is.

        They are remembered for as long as so many may take: silence is noticed only after ``start_s``.
        """
        if not isinstance(error, MisconductError | HandlingError | ProgramSilent | ProgramDeaf | TooSlowError):
            return False
        limits = self._limits
        each_s = max(limits.silence_s, limits.start_s) + limits.back_off_max_s
        memory_s = limits.steady_s + max(limits.quarantine_s, limits.worker_offences * each_s)
        self._offences = [at for at in self._offences if now - at < memory_s] + [now]
        proven = isinstance(error, MisconductError) and error.proven
        if proven:
            self._offences += [now] * self._limits.worker_offences
        return len(self._offences) >= self._limits.worker_offences
