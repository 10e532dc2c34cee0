"""Which worker is given which ticket, and which tickets are run twice at the tail of an iteration."""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from digirl_dist.collect.leases import Leases
from digirl_dist.collect.pace import Pace
from digirl_dist.collect.reliability import Reliability
from digirl_dist.collect.worker_table import WorkerState
from digirl_dist.fleet.fleet import Fleet
from digirl_dist.storage.events import Events
from digirl_dist.tasks import Key
from digirl_dist.types import Clock

_PATIENCE = 2.0
"""A slow worker that was refused tickets is given them where the queue takes so many times as long as foreseen."""
_PAUSE = 9.0
"""Looking through a large fleet takes a while: pauses are so many times as long."""

_Running = tuple[float, Key, str, float]
"""What a duplicate is worth, a ticket, the worker that runs it, and for how many seconds it has."""


@dataclass(frozen=True)
class DispatchRules:
    """``prefetch`` tickets per worker are leased beyond its slots, to hide the round trip.

    ``speculate``: when no ticket is left, idle slots run duplicates of those that are expected to end last, and a slow
    worker begins nothing that would end long after all else.
    """

    prefetch: int = 1
    speculate: bool = True


class Dispatch:
    """Leases tickets to the workers that have room, the fastest first."""

    def __init__(
        self,
        fleet: Fleet[Any],
        states: Mapping[str, WorkerState],
        leases: Leases,
        reliability: Reliability,
        rules: DispatchRules,
        events: Events,
        clock: Clock,
    ) -> None:
        self.pace = Pace()
        self._fleet = fleet
        self._states = states
        self._leases = leases
        self._reliability = reliability
        self._refused_until: dict[str, float] = {}
        self._rules = rules
        self._events = events
        self._clock = clock
        self._double_at = self._again_at = -math.inf
        self._is_behind = False

    def hand_out(self, version: int, goes_on: bool = False) -> None:
        """Leases to every able worker what it has slots for, to be run with that policy version.

        ``goes_on``: more tickets will come, so a slow worker does not hold up an end.

        Does nothing shortly after the last time, which ``again_in_s`` tells.
        """
        now = self._clock()
        doubles = self._rules.speculate and now >= self._double_at and bool(self._leases.tickets)
        self._is_behind = now < self._again_at
        if self._is_behind or not (self._leases.queued or doubles):
            return
        slots = self._slots()
        able = sorted(slots, key=lambda name: self.pace.of(name) or 0.0)
        if self._leases.queued:
            self._lease_all(able, slots, version, goes_on)
        self._again_at = self._clock() + _PAUSE * (self._clock() - now)
        if doubles and not self._leases.queued:
            rooms = {name: room for name in able if (room := slots[name] - self._leases.running(name)) > 0}
            self._double_all(rooms, version)
            self._double_at = self._clock() + _PAUSE * (self._clock() - now)

    @property
    def again_in_s(self) -> float:
        """The seconds until ``hand_out`` does what it has put off; infinite if that is nothing."""
        return max(0.0, self._again_at - self._clock()) if self._is_behind else math.inf

    def _lease_all(self, able: Sequence[str], slots: Mapping[str, int], version: int, goes_on: bool) -> None:
        plenty = self._leases.queued > sum(slots.values())
        ends = self._rules.speculate and not goes_on
        slow = self._leases.lengths.slow(slots, self._leases.queued_length) if ends else {}
        for name in able:
            prefetch = 0 if name in slow or not plenty or self._reliability.is_suspect(name) else self._rules.prefetch
            room = slots[name] + prefetch - self._leases.running(name)
            if room > 0 and self._leases.queued:
                limit_s = self._limit_s(name, slow[name]) if name in slow else math.inf
                if tickets := self._leases.take(name, room, version, able, limit_s):
                    self._refused_until.pop(name, None)
                    self._reliability.holds(name, self._leases.running(name))
                    self._fleet.workers[name].lease(tickets)
                elif limit_s < math.inf:
                    self._refused_until.setdefault(name, self._clock() + _PATIENCE * limit_s)

    def _slots(self) -> dict[str, int]:
        """Returns how many slots each worker has that may be given tickets now.

        Of those that chose their own number, only as many count as their episodes have borne out.
        """
        able = {name: each for name, each in self._states.items() if each.able and self._reliability.may_take(name)}
        slots = {name: each.in_service for name, each in able.items()}
        for name in able:
            if self._reliability.is_suspect(name):
                slots[name] = 1
            elif self._fleet.workers[name].spec.slots is None:
                slots[name] = min(slots[name], self._reliability.most(name, len(self._leases.tickets), len(able)))
        return {name: count for name, count in slots.items() if count > 0}

    def landed(self, key: Key) -> None:
        """Stops the duplicates of an episode that has landed."""
        for name in self._leases.holders(key):
            self._fleet.workers[name].drop([key], "speculation")

    def _limit_s(self, name: str, left_s: float) -> float:
        """Returns how long an episode may take that the worker begins: no longer than the rest of the queue.

        Where it was refused one for as long as that, another worker was not as fast as foreseen, and the ticket goes
        here.
        """
        if self._clock() < self._refused_until.get(name, math.inf):
            return left_s
        del self._refused_until[name]
        return math.inf

    def _double_all(self, rooms: Mapping[str, int], version: int) -> None:
        """Leases duplicates to slots without a ticket, as far as any pay: the most promising first.

        Which those are does not depend on who runs the duplicate, so all are sorted once: those that are overdue by
        their age, the others by what they should still take.
        """
        late: list[_Running] = []
        due: list[_Running] = []
        for key, there, age_s in self._leases.undoubled(version) if rooms else []:
            if self.pace.is_overdue(there, age_s):
                late.append((age_s, key, there, age_s))
            else:
                due.append(((self.pace.of(there) or 0.0) - age_s, key, there, age_s))
        ranked = [deque(sorted(each, reverse=True)) for each in (late, due)]
        for name, room in rooms.items():
            if not self._double(name, room, ranked):
                break  # nor does any pay on a slower worker

    def _double(self, name: str, room: int, ranked: Sequence[deque[_Running]]) -> bool:
        """Leases up to ``room`` duplicates to ``name``, and takes their originals out of ``ranked``.

        It gets none of what failed there: a worker that fails all at once would use up the attempts of the tickets.
        Returns False if nothing is left that would pay on a worker as fast as this one.
        """
        passed: list[list[_Running]] = [[] for _ in ranked]
        while room:
            best: tuple[float, Key, str] = (0.0, Key(0, 0), "")
            chosen = None
            for one, own in zip(ranked, passed, strict=True):
                while one and (one[0][2] == name or self._leases.has_failed(name, one[0][1])):
                    own.append(one.popleft())
                if one and (found := (self.pace.gain(one[0][2], one[0][3], name), *one[0][1:3])) > best:
                    best, chosen = found, one
            if chosen is None or best[0] <= 0:
                break
            room -= 1
            _, key, there, _ = chosen.popleft()
            self._fleet.workers[name].lease([self._leases.double(name, key)])
            self._events.emit("episode_doubled", worker=name, **key.place(), held_by=there)
        for one, own in zip(ranked, passed, strict=True):
            one.extendleft(reversed(own))
        return not room or any(passed)
