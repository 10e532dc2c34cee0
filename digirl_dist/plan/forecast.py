"""Forecasts what a fleet would give, by a model of its queue of tickets."""

from __future__ import annotations

import heapq
import math
from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass, replace
from random import Random

from digirl_dist.plan.figures import Figures

_ITERATIONS = 3
_MOST_EPISODES = 100_000
"""Fewer iterations are forecast where they have more."""
_WORK = ("reset", "step", "policy")

Phase = tuple[str, float]
"""An activity of a slot (see ``slot_time``) and its seconds."""


@dataclass(frozen=True)
class FleetPlan:
    """A fleet of equal workers, and how it is used."""

    workers: int
    slots: int
    rollout_size: int
    ahead: int = 0


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


def phases(figures: Figures, seed: int) -> Sequence[Phase]:
    """Returns what an episode consists of; the same for a seed, whoever runs it."""
    rng = Random(seed)
    reset_s = figures.reset_s * _lognormal(rng, figures.reset_spread)
    steps = max(1.0, figures.steps * _lognormal(rng, figures.steps_spread))
    return [("reset", reset_s), ("policy", steps * figures.policy_s), ("step", steps * figures.step_s)]


def forecast(figures: Figures, plan: FleetPlan, iterations: int = _ITERATIONS) -> Forecast:
    """Takes tickets from one queue to the slot that is free first, and adds the time of links and host.

    No message, no fault of a worker and no duplicate is simulated.
    """
    iterations = max(1, min(iterations, _MOST_EPISODES // plan.rollout_size))
    push_s = max(figures.push_mb / figures.link_mb_s, figures.push_mb * plan.workers / figures.host_mb_s)
    carry_s = figures.episode_mb / figures.host_mb_s + figures.host_episode_s
    free = [0.0] * (plan.workers * plan.slots)
    closed = [0.0] * (iterations + 1)
    learned = [0.0] * (iterations + 2)
    landed_at = 0.0
    seconds: defaultdict[str, float] = defaultdict(float)
    for number in range(iterations + 1):
        released = learned[max(0, number - plan.ahead)]
        ends = []
        for index in range(plan.rollout_size):
            work = _lasts(figures, number * plan.rollout_size + index)
            ends.append(_run(max(free[0], released), released + push_s, work, seconds))
            heapq.heapreplace(free, ends[-1])
        for at in sorted(ends):
            landed_at = max(landed_at, at) + carry_s
        closed[number] = max(landed_at, learned[number])
        learned[number + 1] = closed[number] + figures.update_s
    seconds["barrier"] += max(0.0, plan.workers * plan.slots * closed[-1] - sum(seconds.values()))
    return _forecast(plan, iterations * plan.rollout_size, closed[-1] - closed[0], iterations, seconds)


def _lasts(figures: Figures, seed: int) -> Sequence[Phase]:
    """Returns an episode's phases, with what failed attempts at it take before."""
    attempts = 1 / (1 - min(0.99, figures.fail_rate))
    lost = figures.boot_s * (attempts - 1)
    found = phases(figures, seed)
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


def _forecast(plan: FleetPlan, episodes: int, took_s: float, iterations: int, seconds: dict[str, float]) -> Forecast:
    whole_s = sum(seconds.values()) or 1.0
    shares = {activity: each / whole_s for activity, each in sorted(seconds.items(), key=lambda one: -one[1])}
    busy = sum(seconds[activity] for activity in _WORK) / whole_s
    return Forecast(plan, 3600 * episodes / took_s, took_s / iterations, busy, shares, iterations)


def variants(plan: FleetPlan) -> dict[str, FleetPlan]:
    """Returns what may be changed, by name: one setting each."""
    return {
        "bsize doubled": replace(plan, slots=2 * plan.slots),
        f"ahead={plan.ahead + 1}": replace(plan, ahead=plan.ahead + 1),
        "rollout_size of 8 per slot": replace(plan, rollout_size=8 * plan.workers * plan.slots),
    }


def _lognormal(rng: Random, spread: float) -> float:
    """A log-normal number of mean 1."""
    return math.exp(rng.gauss(-spread * spread / 2, spread)) if spread else 1.0
