"""A host on virtual time: the loop of ``host.train`` over the real collector, begun again wherever it was killed."""

from __future__ import annotations

from collections.abc import Callable, Generator, Sequence
from concurrent.futures import Future
from dataclasses import dataclass, field, replace
from functools import lru_cache
from types import SimpleNamespace
from typing import Any, cast

from digirl_dist import host
from digirl_dist.collect.dispatch import DispatchRules
from digirl_dist.collect.fleet_collector import FleetCollector
from digirl_dist.collection import CollectionResult
from digirl_dist.fleet.fleet import Fleet
from digirl_dist.settings import LimitSettings
from digirl_dist.tasks import Plan, Task, Ticket
from simulate.fleet import SimulatedFleet
from simulate.store import MemoryLedger, MemoryStore, Recorder, SilentStatus
from simulate.world import World

_MAX_STEPS = 10

Step = Generator["float | Future[CollectionResult]", Any, None]
"""Gives the seconds, or the collection, that it waits for."""


@dataclass(frozen=True)
class Schedule:
    """What a host does, as the settings of a run say it."""

    limits: LimitSettings
    rules: DispatchRules = DispatchRules()  # noqa: RUF009 - frozen
    iterations: int = 1
    rollout_size: int = 8
    ahead: int = 0
    evaluate_every: int = 0
    evaluation_episodes: int = 4
    update_s: float = 1.0
    seed: int = 0

    def tickets(self, iteration: int, version: int) -> list[Ticket]:
        return list(_tickets(self.rollout_size, self.seed, iteration, version))

    def evaluation(self, version: int) -> list[Ticket]:
        """As ``host.Evaluator`` draws them."""
        tickets = _tickets(self.evaluation_episodes, self.seed, 0, version)
        return [replace(ticket, iteration=version, purpose="evaluate") for ticket in tickets]


@lru_cache(64)
def _tickets(count: int, seed: int, iteration: int, version: int) -> Sequence[Ticket]:
    return Plan([Task("t")], count, seed, order="sequential").tickets(iteration, version)


@dataclass
class Disk:
    """What outlives a host."""

    store: MemoryStore
    ledger: MemoryLedger = field(default_factory=MemoryLedger)
    newest: int = 0
    """The newest checkpoint."""
    measured: set[int] = field(default_factory=set)
    used: list[tuple[int, Sequence[Any]]] = field(default_factory=list)
    """Iteration and episodes of each update."""


class SimulatedHost:
    """One host process, from its start to its end. ``done`` gets each result as it is collected."""

    def __init__(
        self,
        world: World,
        fleet: SimulatedFleet,
        disk: Disk,
        events: Recorder,
        schedule: Schedule,
        done: Callable[[CollectionResult], object] = lambda result: None,
    ) -> None:
        self.world, self.fleet, self.disk, self.schedule = world, fleet, disk, schedule
        self.finished = False
        self._done = done
        self._begun: set[Future[CollectionResult]] = set()
        self.collector = FleetCollector(
            cast("Fleet[Any]", fleet),
            schedule.limits,
            schedule.rules,
            disk.store,
            events,
            SilentStatus(),
            _MAX_STEPS,
            world.clock,
            disk.ledger,
        )

    def run(self) -> None:
        """Trains to the end. Raises HostKilled, and CollectionError as a run would."""
        loop = self._train()
        self._resume(loop, None)
        while not self.finished:
            self.collector.turn()
        self.collector.close()

    def _resume(self, loop: Step, value: object) -> None:
        try:
            waits_for = loop.send(value)
        except StopIteration:
            self.finished = True
            return
        if isinstance(waits_for, Future):
            waits_for.add_done_callback(lambda future: self._collected(loop, future))
        else:
            self.fleet.later(waits_for, lambda: self._resume(loop, None))

    def _collected(self, loop: Step, future: Future[CollectionResult]) -> None:
        result = future.result()
        self.fleet.later(0.0, lambda: self._resume(loop, result))

    def _begin(self, checkpoint: Any, tickets: Sequence[Ticket]) -> Future[CollectionResult]:
        future = self.collector.begin(checkpoint, tickets)
        if future not in self._begun:
            self._begun.add(future)
            future.add_done_callback(lambda future: self._done(future.result()))
        return future

    def _train(self) -> Step:
        disk, schedule = self.disk, self.schedule
        yield from self._evaluate(disk.newest)
        while (number := disk.newest) < schedule.iterations:
            checkpoint = _checkpoint(number)
            for each in host.under_way(checkpoint, schedule.ahead, schedule.iterations):
                self._begin(checkpoint, schedule.tickets(each, number))
            result = yield self._begin(checkpoint, schedule.tickets(number, number))
            disk.store.append(result)
            yield schedule.update_s
            if disk.store.has(result.round):
                disk.used.append((number, disk.store.read(number)))
            disk.newest = number + 1
            yield from self._evaluate(disk.newest)

    def _evaluate(self, version: int) -> Step:
        every, last = self.schedule.evaluate_every, self.schedule.iterations
        is_due = every > 0 and (version % every == 0 or version == last)
        if is_due and version not in self.disk.measured:
            result = yield self._begin(_checkpoint(version), self.schedule.evaluation(version))
            self.disk.store.append(result)
            self.disk.measured.add(version)


def _checkpoint(version: int) -> Any:
    return SimpleNamespace(iteration=version)
