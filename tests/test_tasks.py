"""Plans are a pure function of seed and iteration."""

from __future__ import annotations

import json

from digirl_dist.tasks import Plan, Task, Ticket

TASKS = [Task(str(number)) for number in range(5)]


def test_the_same_iteration_has_the_same_tickets() -> None:
    plan = Plan(TASKS, rollout_size=8, seed=1)
    assert plan.tickets(3, 3) == plan.tickets(3, 3)
    assert plan.tickets(3, 3) != plan.tickets(4, 4)
    assert plan.tickets(3, 3) != Plan(TASKS, 8, seed=2).tickets(3, 3)


def test_sequential_order_covers_the_set_without_repeats_across_iterations() -> None:
    plan = Plan(TASKS, rollout_size=2, seed=0, order="sequential")
    seen = [ticket.task.id for iteration in range(5) for ticket in plan.tickets(iteration, 0)]
    assert seen == ["0", "1", "2", "3", "4", "0", "1", "2", "3", "4"]


def test_a_ticket_goes_through_json() -> None:
    ticket = Ticket(1, 2, Task("t", "do it", {"goal": [1, 2]}), seed=3, policy_version=1)
    assert Ticket.from_json(json.loads(json.dumps(ticket.to_json()))) == ticket
