"""Accounts for every second of a worker since it first joined: by its own word, or as time it was away."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from digirl_dist.types import Clock


@dataclass
class _Sheet:
    slots: int
    booked_until: float
    was_away: bool = False


class SlotTimeLedger:
    """Adds up what worker programs say of their slots' time, and what died with a program or passed without one.

    ``clock`` gives monotonic seconds.
    """

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._sheets: dict[str, _Sheet] = {}

    def joined(self, worker: str, slots: int) -> None:
        """Begins the account of a worker, or goes on with it."""
        self._sheets.setdefault(worker, _Sheet(slots, self._clock())).slots = slots

    def lost(self, worker: str) -> None:
        """Notes that seconds may be missing until the worker tells them again."""
        if worker in self._sheets:
            self._sheets[worker].was_away = True

    def left(self, worker: str) -> None:
        """Closes the account of a worker that was let go."""
        self._sheets.pop(worker, None)

    def book(self, worker: str, told: Mapping[str, float] | None = None) -> dict[str, float]:
        """Returns the worker's slot-seconds by activity since the last call; ``told`` is None while it is away.

        If it was lost in between, they are made to add up to slots × wall-clock: what is missing was ``away``, and what
        is too much was booked as that before, when only the link to it was down.
        """
        sheet = self._sheets.get(worker)
        if sheet is None:
            return dict(told or {})
        now = self._clock()
        whole = sheet.slots * (now - sheet.booked_until)
        sheet.booked_until = now
        if not sheet.was_away:
            return dict(told or {})
        sheet.was_away = told is None
        return _completed(told or {}, whole)


def _completed(told: Mapping[str, float], whole: float) -> dict[str, float]:
    known = sum(told.values())
    if known > whole:
        return {activity: seconds * whole / known for activity, seconds in told.items()}
    return {**told, "away": whole - known}
