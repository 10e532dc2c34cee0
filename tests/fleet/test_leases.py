"""Each ticket counts once, whatever happens to the workers."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from digirl_dist.errors import HarvestError
from digirl_dist.fleet.leases import Leases
from digirl_dist.tasks import Task, Ticket


def tickets(count: int) -> list[Ticket]:
    return [Ticket(3, index, Task("t"), seed=index, policy_version=3) for index in range(count)]


def indices(leased: list[Ticket]) -> list[int]:
    return [ticket.index for ticket in leased]


def test_tickets_are_leased_once_and_in_order() -> None:
    leases = Leases(tickets(3), set(), attempts=3)
    assert indices(leases.take("a", 2)) == [0, 1]
    assert indices(leases.take("b", 2)) == [2]
    assert leases.queued == 0 and leases.open == 3


def test_what_landed_before_is_not_leased() -> None:
    leases = Leases(tickets(3), {1}, attempts=3)
    assert indices(leases.take("a", 5)) == [0, 2]


def test_a_ticket_lands_once_whoever_delivers_it() -> None:
    leases = Leases(tickets(1), set(), attempts=3)
    leases.take("a", 1)
    assert leases.land(0) and not leases.land(0)
    assert leases.open == 0


def test_the_tickets_of_a_lost_worker_come_first_for_the_others() -> None:
    leases = Leases(tickets(4), set(), attempts=3)
    leases.take("a", 2)
    assert leases.release("a") == 2
    assert indices(leases.take("b", 4)) == [0, 1, 2, 3]


def test_an_episode_that_is_on_its_way_frees_its_slot_but_stays_with_its_worker() -> None:
    leases = Leases(tickets(2), set(), attempts=3)
    leases.take("a", 1)
    assert leases.expect("a", 0) and leases.running("a") == 0
    assert leases.release("a") == 1


def test_a_worker_that_comes_back_keeps_what_nobody_else_has() -> None:
    leases = Leases(tickets(2), set(), attempts=3)
    leases.take("a", 2)
    leases.release("a")
    leases.take("b", 1)
    assert not leases.adopt("a", 0)
    assert leases.adopt("a", 1)
    assert leases.queued == 0


def test_a_repeated_delivery_is_not_expected_again() -> None:
    leases = Leases(tickets(1), set(), attempts=3)
    leases.take("a", 1)
    leases.land(0)
    assert not leases.expect("b", 0)


def test_a_failed_ticket_runs_again_until_it_failed_too_often() -> None:
    leases = Leases(tickets(1), set(), attempts=2)
    leases.take("a", 1)
    leases.fail("a", 0, "hung")
    assert indices(leases.take("b", 1)) == [0]
    with pytest.raises(HarvestError, match="ticket 0 .* failed 2 times, last on worker b: crashed"):
        leases.fail("b", 0, "crashed")


def test_a_failed_ticket_runs_again_before_the_untried_ones() -> None:
    leases = Leases(tickets(4), set(), attempts=3)
    leases.take("a", 2)
    leases.fail("a", 1, "hung")
    assert indices(leases.take("b", 2)) == [1, 2]


def test_a_failure_that_is_reported_twice_puts_the_ticket_back_once() -> None:
    leases = Leases(tickets(1), set(), attempts=5)
    leases.take("a", 1)
    leases.fail("a", 0, "hung")
    leases.fail("a", 0, "hung")
    assert leases.queued == 1


ACTIONS = st.tuples(
    st.sampled_from(["take", "expect", "land", "fail", "release", "adopt"]),
    st.sampled_from("abc"),
    st.integers(0, 5),
)


@given(st.lists(ACTIONS, max_size=60))
def test_no_ticket_is_ever_lost_or_counted_twice(actions: list[tuple[str, str, int]]) -> None:
    leases = Leases(tickets(6), set(), attempts=10**6)
    landed: list[int] = []
    for action, worker, index in actions:
        match action:
            case "take":
                leases.take(worker, index)
            case "expect":
                leases.expect(worker, index)
            case "land":
                landed += [index] if leases.land(index) else []
            case "fail":
                leases.fail(worker, index, "")
            case "release":
                leases.release(worker)
            case "adopt":
                leases.adopt(worker, index)
    for worker in "abc":
        leases.release(worker)
    queued = indices(leases.take("z", 100))
    assert sorted(landed + queued) == list(range(6))
