"""Accounts for every second of a worker since it first joined: by its own word, or as time it was away."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping
from dataclasses import dataclass, field

from digirl_dist.rollout.slot_time import ACTIVITIES
from digirl_dist.types import Clock

_WAITING = ("push", "barrier", "update", "closed")


@dataclass
class _Sheet:
    slots: int
    until: float
    unbooked: float = 0.0
    """Slot-seconds up to ``until`` that nobody has told: those of episodes under way come when these are over."""
    was_away: bool = False
    was_lost: bool = False
    episodes: defaultdict[str, float] = field(default_factory=lambda: defaultdict(float))
    """Seconds by activity of the episodes that ended since the worker last told its own account."""
    known: defaultdict[str, float] = field(default_factory=lambda: defaultdict(float))
    """What the host knows of the seconds before a loss, should the worker never tell."""

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

    def ended(self, worker: str, spent: Mapping[str, float]) -> None:
        """Notes where the seconds of an episode went, which a lost worker cannot tell."""
        if worker in self._sheets:
            _add(self._sheets[worker].episodes, {name: max(0.0, spent.get(name, 0.0)) for name in ACTIVITIES})

    def lost(self, worker: str) -> None:
        """Notes that seconds may be missing until the worker tells them again.

        What it did until now and no episode has brought home is lost with it: it counts as ``faults``.
        """
        sheet = self._sheets.get(worker)
        if sheet is None:
            return
        if not sheet.was_away:
            sheet.go_on(self._clock())
            before = max(0.0, sheet.unbooked - sum(sheet.known.values()))
            _add(sheet.known, _scaled(sheet.episodes, before))
            _add(sheet.known, {"faults": max(0.0, before - sum(sheet.episodes.values()))})
            sheet.episodes.clear()
        sheet.was_away = sheet.was_lost = True

    def left(self, worker: str) -> None:
        """Closes the account of a worker that was let go."""
        self._sheets.pop(worker, None)

    def book(self, worker: str, told: Mapping[str, float] | None = None) -> dict[str, float]:
        """Returns the worker's slot-seconds by activity since the last call; ``told`` is None while it is away.

        Once it was lost, they are made to add up to slots × wall-clock: what is missing was spent as its episodes tell,
        and then ``away``. What is too much passed without a link, and was booked as that, or before this host began.
        """
        sheet = self._sheets.get(worker)
        if sheet is None:
            return dict(told or {})
        sheet.go_on(self._clock())
        booked = dict(told or {})
        if sheet.was_away:
            booked = _completed(booked, sheet.unbooked, sheet.known)
        booked = _reduced(booked, sheet.unbooked)
        if sheet.was_away:
            sheet.known.clear()
            sheet.was_away = told is None
        if told is not None:
            sheet.episodes.clear()
        sheet.unbooked = max(0.0, sheet.unbooked - sum(booked.values()))
        return booked


def _completed(told: Mapping[str, float], whole: float, known: Mapping[str, float]) -> dict[str, float]:
    spent = defaultdict(float, told)
    _add(spent, _scaled(known, max(0.0, whole - sum(told.values()))))
    _add(spent, {"away": max(0.0, whole - sum(spent.values()))})
    return dict(spent)


def _reduced(told: Mapping[str, float], whole: float) -> dict[str, float]:
    """Returns ``told`` without what exceeds ``whole``: first waits, which is what slots without a host come to."""
    waits = {name: told[name] for name in _WAITING if name in told}
    others = {name: seconds for name, seconds in told.items() if name not in waits}
    waits = _scaled(waits, max(0.0, whole - sum(others.values())))
    return {**_scaled(others, whole), **waits}


def _add(total: defaultdict[str, float], more: Mapping[str, float]) -> None:
    for name, seconds in more.items():
        if seconds:
            total[name] += seconds


def _scaled(seconds: Mapping[str, float], most: float) -> dict[str, float]:
    """Returns ``seconds``, reduced in proportion if they are more than ``most`` together."""
    total = sum(seconds.values())
    return {name: each * min(1.0, most / total) for name, each in seconds.items()} if total > 0 < most else {}
