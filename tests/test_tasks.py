"""Plans are a pure function of seed and iteration."""

from __future__ import annotations

import json
from dataclasses import asdict
from typing import get_args

import msgspec

from digirl_dist.tasks import SEEDS, Plan, Share, Task, Ticket

TASKS = [Task(str(number)) for number in range(5)]


def test_the_same_iteration_has_the_same_tickets() -> None:
    plan = Plan(TASKS, rollout_size=8, seed=1)
    assert plan.tickets(3, 3) == plan.tickets(3, 3)
    assert plan.tickets(3, 3) != plan.tickets(4, 4)
    assert plan.tickets(3, 3) != Plan(TASKS, 8, seed=2).tickets(3, 3)


def test_a_ticket_goes_through_json() -> None:
    ticket = Ticket(1, 2, Task("t", "do it", {"goal": [1, 2]}), seed=3, policy_version=1)
    assert msgspec.convert(json.loads(json.dumps(asdict(ticket))), Ticket) == ticket


def test_no_measurement_has_a_seed_of_training_or_of_another_measurement() -> None:
    for share in get_args(Share):
        plans = [Plan(TASKS, rollout_size=64, seed=seed, share=share) for seed in range(4)]
        drawn = {ticket.seed for plan in plans for iteration in range(3) for ticket in plan.tickets(iteration, 0)}
        homes = [name for name, seeds in SEEDS.items() if any(seed in seeds for seed in drawn)]
        assert homes == [share] and len(drawn) == 4 * 3 * 64
    assert max(seeds.stop for seeds in SEEDS.values()) <= 2**31  # what every environment takes


def test_the_seeds_of_a_measurement_do_not_follow_those_of_training() -> None:
    """An emulator may choose its instance by the remainder of its seed."""
    train, test = (Plan(TASKS, 64, seed=0, share=share).tickets(0, 0) for share in ("train", "test"))
    alike = sum(one.seed % 16 == other.seed % 16 for one, other in zip(train, test, strict=True))
    assert alike < 16
