"""Which worker is given which ticket, and which tickets are run twice at the tail of an iteration."""

from __future__ import annotations

import math
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

_PAUSE = 9.0
"""Looking for tickets that are worth a duplicate takes a while in a large fleet: pauses are so many times as long."""


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
        self._double_at = -math.inf

    def hand_out(self, version: int) -> None:
        """Leases to every able worker what it has slots for, to be run with that policy version."""
        may_double = self._rules.speculate and self._clock() >= self._double_at
        if not self._leases.queued and not may_double:
            return
        slots = self._slots()
        able = sorted(slots, key=lambda name: self.pace.of(name) or 0.0)
        if self._leases.queued:
            self._lease(able, slots, version)
        if may_double and not self._leases.queued:
            now = self._clock()
            rooms = {name: room for name in able if (room := slots[name] - self._leases.running(name)) > 0}
            if rooms:
                self._double_all(rooms, version)
            self._double_at = self._clock() + _PAUSE * (self._clock() - now)

    def _lease(self, able: Sequence[str], slots: Mapping[str, int], version: int) -> None:
        plenty = self._leases.queued > sum(slots.values())
        start = not any(self._leases.running(name) for name in able)
        for name in able:
            prefetch = self._rules.prefetch if plenty and not self._reliability.is_suspect(name) else 0
            room = slots[name] + prefetch - self._leases.running(name)
            if room > 0 and self._leases.queued and (start or self._may_take(name, slots)):
                if tickets := self._leases.take(name, room, version, able):
                    self._reliability.holds(name, self._leases.running(name))
                    self._fleet.workers[name].lease(tickets)

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
                most = self._reliability.most(name, len(self._leases.tickets), len(able))
                slots[name] = min(slots[name], most)
        return {name: count for name, count in slots.items() if count > 0}

    def landed(self, winner: str, key: Key) -> None:
        """Stops the duplicates of an episode that has landed."""
        for name in self._leases.holders(key):
            if name != winner:
                self._fleet.workers[name].drop([key], "speculation")

    def _may_take(self, name: str, slots: Mapping[str, int]) -> bool:
        """Returns whether the worker ends in time; a ticket that is refused here soon goes to a faster worker.

        Where that was foreseen and did not happen, because a worker was not as fast as it said, the ticket goes here.
        """
        if not self._rules.speculate or self.pace.is_in_time(name, self._leases.queued, slots):
            self._refused_until.pop(name, None)
            return True
        now = self._clock()
        until = self._refused_until.setdefault(name, now + self.pace.drained_s(self._leases.queued, slots))
        if now < until:
            return False
        del self._refused_until[name]
        return True

    def _double_all(self, rooms: Mapping[str, int], version: int) -> None:
        """Leases duplicates to slots without a ticket, as far as any pay."""
        undoubled = self._leases.undoubled(version)
        for name, room in rooms.items():
            doubled = self._double(name, room, undoubled)
            undoubled = [held for held in undoubled if held[0] not in doubled]

    def _double(self, name: str, room: int, undoubled: Sequence[tuple[Key, str, float]]) -> set[Key]:
        """Leases up to ``room`` duplicates to ``name``, the most promising first; returns their keys."""
        others = [(self.pace.gain(there, age_s, name), key, there) for key, there, age_s in undoubled if there != name]
        best = sorted((each for each in others if each[0] > 0), reverse=True)[:room]
        for _, key, there in best:
            self._fleet.workers[name].lease([self._leases.double(name, key)])
            self._events.emit("episode_doubled", worker=name, iteration=key[0], ticket=key[1], held_by=there)
        return {key for _, key, _ in best}
