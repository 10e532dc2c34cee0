"""A collector on a simulated fleet, and everything that a test may want to look at."""

from __future__ import annotations

import weakref
from collections.abc import Sequence
from dataclasses import dataclass
from random import Random
from types import SimpleNamespace
from typing import Any

from digirl_dist.collect.dispatch import DispatchRules
from digirl_dist.collect.fleet_collector import FleetCollector
from digirl_dist.settings import LimitSettings
from digirl_dist.tasks import Task, Ticket
from simulate.behaviour import Behaviour
from simulate.fleet import SimulatedFleet
from simulate.link import Link
from simulate.machine import Machine, MachineSpec
from simulate.program import SimulatedProgram
from simulate.store import MemoryStore, Recorder, SilentStatus
from simulate.world import World


def machine(world: World, name: str, behaviour: Behaviour) -> Machine:
    spec = MachineSpec(name, behaviour.slots)
    return Machine(world, spec, SimulatedProgram(world, name, behaviour), Link(world, Random(name)))


@dataclass
class Simulation:
    world: World
    machines: dict[str, Machine]
    fleet: SimulatedFleet
    store: MemoryStore
    events: Recorder
    collector: FleetCollector

    @classmethod
    def of(cls, behaviours: dict[str, Behaviour], limits: LimitSettings, **rules: Any) -> Simulation:
        world = World()
        machines = {name: machine(world, name, behaviour) for name, behaviour in behaviours.items()}
        fleet, store, events = SimulatedFleet(world, list(machines.values()), limits), MemoryStore(), Recorder(world)
        parts: list[Any] = [fleet, limits, DispatchRules(**rules), store, events, SilentStatus()]
        collector = FleetCollector(*parts, most_steps=10, clock=world.clock)
        found = cls(world, machines, fleet, store, events, collector)
        weakref.finalize(found, fleet.vanish)  # the threads of its workers end with it
        return found

    def collect(self, tickets: Sequence[Ticket]) -> Any:
        """As ``Pool.collect``, whose thread is this one."""
        checkpoint: Any = SimpleNamespace(iteration=tickets[0].iteration)
        future = self.collector.begin(checkpoint, tickets)
        while not future.done():
            self.collector.turn()
        return future.result()


def tickets(count: int, iteration: int = 0) -> list[Ticket]:
    return [Ticket(iteration, index, Task("t"), index, iteration) for index in range(count)]
