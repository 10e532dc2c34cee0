"""What a fleet would give: by the real collector on virtual time, or for many slots by its queue alone."""

from __future__ import annotations

import heapq
import math
from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass, replace
from random import Random

from digirl_dist.collect.dispatch import DispatchRules
from digirl_dist.collect.iteration import Closing
from digirl_dist.collection import CollectionResult
from digirl_dist.settings import LimitSettings
from digirl_dist.simulation.behaviour import Behaviour, Fate, Phase
from digirl_dist.simulation.figures import Figures
from digirl_dist.simulation.fleet import SimulatedFleet
from digirl_dist.simulation.host import Disk, Schedule, SimulatedHost
from digirl_dist.simulation.link import Link
from digirl_dist.simulation.machine import Machine, MachineSpec
from digirl_dist.simulation.program import SimulatedProgram
from digirl_dist.simulation.store import MemoryStore, Recorder
from digirl_dist.simulation.world import World
from digirl_dist.tasks import Ticket

_MOST_WORKERS, _MOST_SLOTS = 16, 64
"""The real collector forecasts fleets of up to so many, in a second or two each."""
_ITERATIONS = 3
_MOST_EPISODES = 100_000
"""Fewer iterations are forecast where they have more."""
_WORK = ("reset", "step", "policy")


@dataclass(frozen=True)
class FleetPlan:
    """A fleet and how it is used. ``slowness``: of single workers, whose times are that much longer."""

    workers: int
    slots: int
    rollout_size: int
    closing: Closing = Closing()  # noqa: RUF009 - frozen
    ahead: int = 0
    rules: DispatchRules = DispatchRules()  # noqa: RUF009 - frozen
    slowness: tuple[float, ...] = ()

    def slowness_of(self, worker: int) -> float:
        return self.slowness[worker] if worker < len(self.slowness) else 1.0


@dataclass(frozen=True)
class Forecast:
    """What a plan would give, once it has warmed up."""

    plan: FleetPlan
    episodes_per_hour: float
    iteration_s: float
    busy: float
    """The share of slot-seconds in episodes that counted."""
    shares: dict[str, float]
    """Where slot-seconds go, by activity (see ``slot_time``)."""
    iterations: int
    """How many were forecast, beside one to warm up."""
    by_collector: bool
    """Whether the real collector was simulated."""


def forecast(figures: Figures, plan: FleetPlan, iterations: int = _ITERATIONS) -> Forecast:
    """Returns what the fleet would give, with the collector if it is small enough."""
    if plan.workers <= _MOST_WORKERS and plan.workers * plan.slots <= _MOST_SLOTS:
        return by_collector(figures, plan, iterations)
    return by_queue(figures, plan, max(1, min(iterations, _MOST_EPISODES // plan.rollout_size)))


def phases(figures: Figures, seed: int, slowness: float = 1.0) -> Sequence[Phase]:
    """Returns what an episode consists of; the same for a seed, whoever runs it."""
    rng = Random(seed)
    reset_s = figures.reset_s * _lognormal(rng, figures.reset_spread)
    steps = max(1.0, figures.steps * _lognormal(rng, figures.steps_spread))
    work = [("reset", reset_s), ("policy", steps * figures.policy_s), ("step", steps * figures.step_s)]
    return [(activity, seconds * slowness) for activity, seconds in work]


def by_collector(figures: Figures, plan: FleetPlan, iterations: int = _ITERATIONS) -> Forecast:
    """Simulates the real collector, sessions and program cores; the first iteration is left out."""
    world = World()
    machines = [_machine(world, figures, plan, number) for number in range(plan.workers)]
    schedule = Schedule(
        limits=LimitSettings(episode_attempts=1000),
        rules=plan.rules,
        closing=plan.closing,
        iterations=iterations + 1,
        rollout_size=plan.rollout_size,
        ahead=plan.ahead,
        update_s=figures.update_s,
    )
    fleet = SimulatedFleet(world, machines, schedule.limits, policy_bytes=round(figures.push_mb * 1e6))
    fleet.host_rate, fleet.episode_s = figures.host_mb_s * 1e6, figures.host_episode_s
    results: list[CollectionResult] = []
    SimulatedHost(world, fleet, Disk(MemoryStore()), Recorder(world), schedule, results.append).run()
    seconds: defaultdict[str, float] = defaultdict(float)
    for result in results[1:]:
        for one in result.worker_results:
            for activity, each in one.slot_seconds.items():
                seconds[activity] += each
    episodes = sum(len(result.trajectories) for result in results[1:])
    took_s = results[-1].ended_at - results[0].ended_at
    return _forecast(plan, episodes, took_s, len(results) - 1, seconds, True)


def _machine(world: World, figures: Figures, plan: FleetPlan, number: int) -> Machine:
    name, slowness, rng = f"w{number}", plan.slowness_of(number), Random(number)

    def fate(ticket: Ticket) -> Fate:
        return "fails" if rng.random() < figures.fail_rate else "ends"

    def phases_of(ticket: Ticket) -> Sequence[Phase]:
        return phases(figures, ticket.seed, slowness)

    behaviour = Behaviour(plan.slots, boot_s=figures.boot_s, fate=fate, phases=phases_of)
    program = SimulatedProgram(world, name, behaviour)
    program.episode_bytes = round(figures.episode_mb * 1e6)
    link = Link(world, Random(f"link {number}"), 0.01, 0.0, figures.link_mb_s * 1e6)
    return Machine(world, MachineSpec(name, plan.slots), program, link)


def by_queue(figures: Figures, plan: FleetPlan, iterations: int = _ITERATIONS) -> Forecast:
    """Takes tickets from one queue to the slot that is free first; what links and host take is added.

    No message, no fault of a worker and no duplicate is simulated. What closing early leaves under way is carried over;
    at a deadline, what has not begun is cancelled.
    """
    push_s = max(figures.push_mb / figures.link_mb_s, figures.push_mb * plan.workers / figures.host_mb_s)
    carry_s = figures.episode_mb / figures.host_mb_s + figures.host_episode_s
    free = [(0.0, plan.slowness_of(slot % plan.workers)) for slot in range(plan.workers * plan.slots)]
    heapq.heapify(free)
    closed = [0.0] * (iterations + 1)
    learned = [0.0] * (iterations + 2)
    landed_at, landed, first = 0.0, 0, 0
    seconds: defaultdict[str, float] = defaultdict(float)
    ends: list[float] = []
    for number in range(iterations + 1):
        released = learned[max(0, number - plan.ahead)]
        deadline = max(released, learned[number]) + plan.closing.after_s
        for index in range(plan.rollout_size):
            at, slowness = free[0]
            if max(at, released) > deadline:
                break
            work = _lasts(figures, number * plan.rollout_size + index, slowness)
            ends.append(_run(max(at, released), released + push_s, work, seconds))
            heapq.heapreplace(free, (ends[-1], slowness))
        ends.sort()
        due = sum(at <= deadline for at in ends) or 1
        counted = min(due, math.ceil(plan.closing.share * len(ends) - 1e-9))
        for at in ends[:counted]:
            landed_at = max(landed_at, at) + carry_s
        closed[number] = max(landed_at, learned[number], deadline if counted < len(ends) and due == counted else 0.0)
        learned[number + 1] = closed[number] + figures.update_s
        ends, landed = ends[counted:], landed + counted
        first = first or counted
    seconds["barrier"] += max(0.0, plan.workers * plan.slots * closed[-1] - sum(seconds.values()))
    return _forecast(plan, landed - first, closed[-1] - closed[0], iterations, seconds, False)


def _lasts(figures: Figures, seed: int, slowness: float) -> Sequence[Phase]:
    """Returns an episode's phases, with what failed attempts at it take before."""
    attempts = 1 / (1 - min(0.99, figures.fail_rate))
    lost = figures.boot_s * (attempts - 1)
    found = phases(figures, seed, slowness)
    return [*found, ("faults", lost + (attempts - 1) * sum(each for _, each in found))]


def _run(begins: float, acting: float, work: Sequence[Phase], seconds: dict[str, float]) -> float:
    """Returns when an episode ends that begins then; after the reset it waits for the policy."""
    at = begins
    for activity, each in work:
        if activity == "policy" and at < acting:
            seconds["push"] += acting - at
            at = acting
        seconds[activity] += each
        at += each
    return at


def _forecast(
    plan: FleetPlan, episodes: int, took_s: float, iterations: int, seconds: dict[str, float], by_collector: bool
) -> Forecast:
    whole_s = sum(seconds.values()) or 1.0
    shares = {activity: each / whole_s for activity, each in sorted(seconds.items(), key=lambda one: -one[1])}
    busy = sum(seconds[activity] for activity in _WORK) / whole_s
    return Forecast(plan, 3600 * episodes / took_s, took_s / iterations, busy, shares, iterations, by_collector)


def variants(plan: FleetPlan) -> dict[str, FleetPlan]:
    """Returns what may be changed, by name: one setting each."""
    return {
        "bsize doubled": replace(plan, slots=2 * plan.slots),
        "close=quorum quorum=0.9": replace(plan, closing=Closing(0.9)),
        f"collect_ahead={plan.ahead + 1}": replace(plan, ahead=plan.ahead + 1),
        "rollout_size of 8 per slot": replace(plan, rollout_size=8 * plan.workers * plan.slots),
    }


def _lognormal(rng: Random, spread: float) -> float:
    """A log-normal number of mean 1."""
    return math.exp(rng.gauss(-spread * spread / 2, spread)) if spread else 1.0
