"""Accounts for every second of a worker since it first joined: by its own word, or as time it was away."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from digirl_dist.types import Clock


@dataclass
class _Sheet:
    slots: int
    until: float
    unbooked: float = 0.0
    """Slot-seconds up to ``until`` that nobody has told: those of episodes under way come when these are over."""
    was_away: bool = False
    was_lost: bool = False

    def go_on(self, now: float) -> None:
        self.unbooked += self.slots * (now - self.until)
        self.until = now


class SlotTimeLedger:
    """Adds up what worker programs say of their slots' time, and what died with a program or passed without one.

    ``clock`` gives monotonic seconds.
    """

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._sheets: dict[str, _Sheet] = {}

    def joined(self, worker: str, slots: int) -> None:
        """Begins the account of a worker, or goes on with it."""
        sheet = self._sheets.setdefault(worker, _Sheet(slots, self._clock()))
        sheet.go_on(self._clock())
        sheet.slots = slots

    def lost(self, worker: str) -> None:
        """Notes that seconds may be missing until the worker tells them again."""
        if worker in self._sheets:
            self._sheets[worker].was_away = self._sheets[worker].was_lost = True

    def left(self, worker: str) -> None:
        """Closes the account of a worker that was let go."""
        self._sheets.pop(worker, None)

    def book(self, worker: str, told: Mapping[str, float] | None = None) -> dict[str, float]:
        """Returns the worker's slot-seconds by activity since the last call; ``told`` is None while it is away.

        Once it was lost, they are made to add up to slots × wall-clock: what is missing was ``away``, and what is too
        much was booked as that before, when only the link to it was down.
        """
        sheet = self._sheets.get(worker)
        if sheet is None:
            return dict(told or {})
        sheet.go_on(self._clock())
        booked = dict(told or {})
        if sheet.was_away or (sheet.was_lost and sum(booked.values()) > sheet.unbooked):
            booked = _completed(booked, sheet.unbooked)
            sheet.was_away = told is None
        sheet.unbooked = max(0.0, sheet.unbooked - sum(booked.values()))
        return booked


def _completed(told: Mapping[str, float], whole: float) -> dict[str, float]:
    known = sum(told.values())
    if known > whole:
        return {activity: seconds * whole / known for activity, seconds in told.items()}
    return {**told, "away": whole - known}
