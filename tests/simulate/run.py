"""One simulated run: hosts that follow each other on the same machines, under the faults of a scenario."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from random import Random

from digirl_dist.errors import CollectionError
from digirl_dist.plan.forecast import Phase
from digirl_dist.tasks import Ticket
from simulate.behaviour import Behaviour
from simulate.faults import Fault, strike
from simulate.fleet import SimulatedFleet
from simulate.host import Disk, SimulatedHost
from simulate.invariants import Invariants
from simulate.link import Link
from simulate.machine import Machine, MachineSpec
from simulate.program import SimulatedProgram
from simulate.scenario import MachineTraits, Scenario
from simulate.store import MemoryStore, Recorder
from simulate.world import HostKilled, Violation, World

_MOST_HOSTS = 30
_MOST_HAPPENINGS = 200_000
_JOIN_AGAIN_S = 3.0
_LAST_S = 60.0
"""More than what a program that nobody could stop has begun when it is orphaned."""


class SimulatedRun:
    """The world of one scenario. ``run`` raises Violation when a promise is broken."""

    def __init__(self, scenario: Scenario, keep_trace: bool = False) -> None:
        self.world = World()
        self.world.most = _MOST_HAPPENINGS
        self.world.lines = [] if keep_trace else None
        self.scenario = scenario
        self.slowness: dict[str, float] = {}
        self.machines = [self._machine(number, traits) for number, traits in enumerate(scenario.machines)]
        self.disk = Disk(MemoryStore(self._touches))
        self.events = Recorder(self.world)
        self.invariants = Invariants(self)
        self.hosts = 0
        self.fatal = False
        """Whether an agent broke, which takes its worker out for good."""
        self.away_s = 0.0
        """How long nobody starts the host again after its end."""
        self.calm_at = 0.0
        """When the last fault is over."""
        self._writes_left = 0
        for fault in scenario.faults:
            self._expect(fault)

    def run(self) -> None:
        """Starts hosts, as a user would with the same command, until the run is done."""
        try:
            while not self._is_done():
                self.fleet.vanish()
                self.world.sleep(self.away_s)
            self._end()
        finally:
            self.fleet.vanish()

    def _is_done(self) -> bool:
        """Runs one host to its end; returns whether that was the end of the run, too."""
        self._start_host()
        try:
            self._work()
            return True
        except HostKilled:
            return False
        except CollectionError as error:
            self.invariants.gave_up(error)
            self.away_s = 1.0
            return False

    def _work(self) -> None:
        self.host.run()

    def _check(self) -> None:
        """Checks what lies on the disk at the end."""
        self.invariants.finished()

    def _end(self) -> None:
        self._check()
        self.fleet.alive = False  # faults may still strike the machines
        over_at, alone_s = self.world.now, self.scenario.schedule.limits.orphan_s + _LAST_S
        while self.invariants.orphans() and self.world.now < max(self.calm_at, over_at) + alone_s:
            self.world.sleep(1.0)
        self.invariants.left_alone()

    def later(self, seconds: float, action: Callable[[], object]) -> None:
        """The end of a fault."""
        self.calm_at = max(self.calm_at, self.world.now + seconds)
        self.world.later(seconds, action)

    def join(self, machine: Machine) -> None:
        """The roster names the machine again; one that is still leaving joins once it has left."""
        if machine.spec.name in self.fleet.workers:
            self.later(_JOIN_AGAIN_S, lambda: self.join(machine))
        else:
            self.fleet.join(machine)

    def machine(self, name: str) -> Machine:
        return next(machine for machine in self.machines if machine.spec.name == name)

    @property
    def bends_time(self) -> bool:
        """Whether some second is longer on one machine than on another."""
        return any(
            fault.kind in ("jump_clock", "suspend_host", "delay", "stop_program") for fault in self.scenario.faults
        )

    def kill_host(self, away_s: float) -> None:
        self.away_s = away_s
        if self.fleet.alive:
            raise HostKilled

    def kill_host_at_write(self, number: int, away_s: float) -> None:
        self._writes_left, self.away_s = number, away_s

    def host_disk_is_full(self, full: bool) -> None:
        self.fleet.disk_is_full = full

    def _start_host(self) -> None:
        self.hosts += 1
        if self.hosts > _MOST_HOSTS:
            raise Violation("progress", f"{self.hosts} hosts were started")
        self._writes_left = 0
        self.fleet = SimulatedFleet(self.world, self.machines, self.scenario.schedule.limits, f"{self.scenario.seed}")
        self.fleet.each_turn = self.invariants.each_turn
        self.events.emit("host_started", number=self.hosts)
        self.invariants.host_started()
        done = self.invariants.result
        self.host = SimulatedHost(self.world, self.fleet, self.disk, self.events, self.scenario.schedule, done)

    def _touches(self) -> None:
        self._writes_left -= 1
        if self._writes_left == 0:
            raise HostKilled

    def _expect(self, fault: Fault) -> None:
        machine = self.machines[fault.worker]
        if fault.on is not None:
            machine.strikes[fault.on] = (fault.before, partial(self._strike, fault))
        else:
            self.world.later(fault.at, partial(self._strike, fault))

    def _strike(self, fault: Fault) -> None:
        self.calm_at = max(self.calm_at, self.world.now)
        self.fatal = self.fatal or fault.kind == "break_agent"
        strike(self, fault)

    def _machine(self, number: int, traits: MachineTraits) -> Machine:
        name, seed = f"w{number}", self.scenario.seed
        phases = partial(self._phases, name, traits)
        behaviour = Behaviour(traits.slots, boot_s=traits.boot_s, load_s=traits.load_s, phases=phases)
        program = SimulatedProgram(self.world, name, behaviour, self.scenario.schedule.limits.orphan_s)
        rng = Random(f"link {seed} {number}")
        link = Link(self.world, rng, traits.latency_s, traits.jitter_s, traits.rate)
        return Machine(self.world, MachineSpec(name, traits.slots), program, link, traits.connect_s)

    def _phases(self, name: str, traits: MachineTraits, ticket: Ticket) -> Sequence[Phase]:
        """An episode's length follows from its ticket, as an emulator's does."""
        factor = 0.5 + (ticket.seed % 1024) / 512  # 0.5 to 2.5
        slowness = self.slowness.get(name, 1.0)
        return [("reset", traits.reset_s * factor * slowness), ("step", traits.episode_s * factor * slowness)]
