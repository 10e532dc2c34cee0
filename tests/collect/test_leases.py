"""Each ticket counts once, whatever happens to the workers."""

from __future__ import annotations

import time
from collections.abc import Iterator
from dataclasses import replace

from hypothesis import given
from hypothesis import strategies as st

from digirl_dist.collect.leases import Leases as Bare
from digirl_dist.collect.leases import Lost
from digirl_dist.tasks import Key, Task, Ticket


def leased(wanted: list[Ticket], attempts: int) -> Bare:
    leases = Bare(attempts, time.monotonic)
    leases.add(wanted)
    return leases


def tickets(count: int) -> list[Ticket]:
    return [Ticket(3, index, Task("t"), seed=index, policy_version=3) for index in range(count)]


def indices(leased: list[Ticket]) -> list[int]:
    return [ticket.index for ticket in leased]


def test_a_ticket_that_failed_nowhere_is_compared_with_no_worker() -> None:
    """With 1,000 workers, 8,000 tickets were 8,000,000 comparisons."""

    class Untouchable(list[str]):
        def __iter__(self) -> Iterator[str]:
            raise AssertionError("it looks through all workers")

    assert len(leased(tickets(4), 3).take("a", 4, 0, Untouchable("ab"))) == 4


def test_tickets_are_leased_once_and_in_order() -> None:
    leases = leased(tickets(3), attempts=3)
    assert indices(leases.take("a", 2, version=3)) == [0, 1]
    assert indices(leases.take("b", 2, version=3)) == [2]
    assert leases.queued == 0 and len(leases.tickets) == 3


def test_a_ticket_is_held_by_all_who_run_it_until_it_lands_or_they_let_it_go() -> None:
    leases = leased(tickets(2), attempts=3)
    leases.take("a", 1, version=3)
    leases.double("b", Key(3, 0))
    assert leases.holders(Key(3, 0)) == ["a", "b"] and not leases.undoubled(3)
    assert leases.expect("b", Key(3, 0), 1) and leases.holders(Key(3, 0)) == ["a"]
    assert leases.release("a") == 0 and leases.queued == 1, "its episode is on its way from b"
    leases.adopt("a", Key(3, 0))
    assert leases.land(Key(3, 0)) and not leases.holds("a") and not leases.holds("b")
    assert not leases.holders(Key(3, 0))


def test_tickets_that_are_known_are_not_queued_again() -> None:
    leases = leased(tickets(2), attempts=3)
    leases.take("a", 1, version=3)
    leases.add(tickets(3))
    assert indices(leases.take("b", 5, version=3)) == [1, 2]


def test_a_ticket_lands_once_whoever_delivers_it() -> None:
    leases = leased(tickets(1), attempts=3)
    leases.take("a", 1, version=3)
    assert leases.land(Key(3, 0)) and not leases.land(Key(3, 0))
    assert not leases.tickets


def test_the_tickets_of_a_lost_worker_come_first_for_the_others() -> None:
    leases = leased(tickets(4), attempts=3)
    leases.take("a", 2, version=3)
    assert leases.release("a") == 2
    assert indices(leases.take("b", 4, version=3)) == [0, 1, 2, 3]


def test_an_episode_that_is_on_its_way_frees_its_slot_but_stays_with_its_worker() -> None:
    leases = leased(tickets(2), attempts=3)
    leases.take("a", 1, version=3)
    assert leases.expect("a", Key(3, 0), 0) and leases.running("a") == 0
    assert leases.release("a") == 1


def test_a_worker_that_comes_back_keeps_what_nobody_else_has() -> None:
    leases = leased(tickets(2), attempts=3)
    leases.take("a", 2, version=3)
    leases.release("a")
    leases.take("b", 1, version=3)
    assert not leases.adopt("a", Key(3, 0))
    assert leases.adopt("a", Key(3, 1))
    assert leases.queued == 0


def leased_twice_to_a() -> Bare:
    """Its one ticket was leased to "a", lost with the connection, and leased to "a" again."""
    leases = leased(tickets(1), attempts=3)
    leases.take("a", 1, version=3)
    leases.release("a")
    leases.take("a", 1, version=3)
    return leases


def test_an_episode_that_comes_while_its_ticket_is_leased_anew_to_the_same_worker_leaves_that_lease() -> None:
    leases = leased_twice_to_a()
    assert leases.expect("a", Key(3, 0), 0) and leases.holders(Key(3, 0)) == ["a"]
    assert not leases.fail("a", Key(3, 0), "it was cut", attempt=0)
    assert leases.queued == 0 and leases.holders(Key(3, 0)) == ["a"]
    assert leases.expect("a", Key(3, 0), 1) and leases.holders(Key(3, 0)) == []
    leases.fail("a", Key(3, 0), "it was cut", attempt=1)
    assert leases.queued == 1


def test_a_later_attempt_that_ends_while_the_earlier_episode_is_pulled_runs_no_more() -> None:
    leases = leased_twice_to_a()
    assert leases.expect("a", Key(3, 0), 0)
    assert not leases.expect("a", Key(3, 0), 1) and leases.running("a") == 0
    leases.fail("a", Key(3, 0), "it was cut", attempt=0)
    assert leases.queued == 1


def test_a_repeated_delivery_is_not_expected_again() -> None:
    leases = leased(tickets(1), attempts=3)
    leases.take("a", 1, version=3)
    leases.land(Key(3, 0))
    assert not leases.expect("b", Key(3, 0), 0)


def test_a_failed_ticket_runs_again_until_it_failed_too_often() -> None:
    leases = leased(tickets(1), attempts=2)
    leases.take("a", 1, version=3)
    leases.fail("a", Key(3, 0), "hung")
    assert indices(leases.take("b", 1, version=3)) == [0]
    assert leases.fail("b", Key(3, 0), "crashed") and not leases.tickets
    told = leases.why_set_aside(Key(3, 0))
    assert told["workers"] == ["a", "b"] and told["reason"] == "crashed"
    assert leases.lost(Key(3, 0)) == Lost("infrastructure", "it failed 2 times: on b: crashed; on a: hung")


def test_a_failed_ticket_runs_again_before_the_untried_ones() -> None:
    leases = leased(tickets(4), attempts=3)
    leases.take("a", 2, version=3)
    leases.fail("a", Key(3, 1), "hung")
    assert indices(leases.take("b", 2, version=3)) == [1, 2]


def test_one_that_failed_again_waits_for_its_round_and_not_for_the_one_that_runs_ahead() -> None:
    """A round with ``ahead`` once waited for a whole further one, because an emulator had hung twice."""
    leases = leased(tickets(3), attempts=4)
    leases.add([replace(each, iteration=4) for each in tickets(2)])
    for worker in "ab":
        assert indices(leases.take(worker, 1, version=3)) == [0]
        leases.fail(worker, Key(3, 0), "it hung", others=["a", "b"])
    left = leases.take("c", 9, version=3)
    assert [(one.iteration, one.index) for one in left] == [(3, 1), (3, 2), (3, 0), (4, 0), (4, 1)]


def test_a_failure_that_is_reported_twice_puts_the_ticket_back_once() -> None:
    leases = leased(tickets(1), attempts=5)
    leases.take("a", 1, version=3)
    leases.fail("a", Key(3, 0), "hung")
    leases.fail("a", Key(3, 0), "hung")
    assert leases.queued == 1


def test_a_lease_fixes_the_policy_version() -> None:
    leases = leased(tickets(2), attempts=3)
    [first] = leases.take("a", 1, version=3)
    leases.release("a")
    [again] = leases.take("b", 1, version=4)
    assert (first.policy_version, again.policy_version) == (3, 4) and first.key == again.key


def test_a_doubled_ticket_lands_once_and_survives_the_loss_of_one_holder() -> None:
    leases = leased(tickets(1), attempts=1)
    leases.take("slow", 1, version=3)
    [(key, worker, age_s)] = leases.undoubled(version=3)
    assert key == Key(3, 0) and worker == "slow" and age_s >= 0
    assert leases.double("fast", key).key == key
    assert not leases.undoubled(version=3) and leases.holders(key) == ["slow", "fast"]
    leases.fail("slow", key, "crashed")
    assert leases.queued == 0 and leases.release("fast") == 1
    leases.take("fast", 1, version=3)
    assert leases.land(key) and not leases.land(key)


def test_what_runs_under_another_policy_or_is_on_its_way_is_not_doubled() -> None:
    leases = leased(tickets(2), attempts=1)
    leases.take("a", 2, version=3)
    assert not leases.undoubled(version=4)
    leases.expect("a", Key(3, 0), 0)
    assert [key for key, _, _ in leases.undoubled(version=3)] == [Key(3, 1)]


def test_closing_keeps_what_was_begun_and_takes_back_the_rest() -> None:
    leases = leased(tickets(5), attempts=3)
    leases.take("a", 2, version=3)
    leases.take("b", 1, version=3)
    leases.fail("b", Key(3, 2), "hung")
    leases.land(Key(3, 0))
    leases.withdraw({Key(3, index) for index in range(5)})
    assert [key.number for key in leases.tickets] == [1, 2]
    assert leases.queued == 1 and leases.running("a") == 1


def test_a_ticket_that_failed_on_a_worker_goes_to_another_first() -> None:
    leases = leased(tickets(2), attempts=3)
    leases.take("a", 1, version=3)
    leases.fail("a", Key(3, 0), "hung")
    assert indices(leases.take("a", 5, 3, ["a", "b"])) == [1], "it took what had failed there though b is able"
    assert indices(leases.take("b", 5, 3, ["a", "b"])) == [0]
    leases.fail("b", Key(3, 0), "hung")
    assert indices(leases.take("a", 5, 3, ["a", "b"])) == [0], "nobody is left who has not tried"


def test_a_lease_is_overdue_after_its_time() -> None:
    now = 0.0
    leases = Bare(3, lambda: now, lease_s=10.0)
    leases.add(tickets(2))
    leases.take("a", 1, version=3)
    now = 5.0
    leases.take("b", 1, version=3)
    now = 11.0
    assert leases.overdue() == [("a", Key(3, 0))]
    assert leases.expect("a", Key(3, 0), 0) and not leases.overdue()
    now = 22.0
    assert leases.overdue() == [("b", Key(3, 1)), ("a", Key(3, 0))], "an episode may take as long to come"


ACTIONS = st.tuples(
    st.sampled_from(["take", "double", "expect", "land", "fail", "release", "adopt", "add", "withdraw"]),
    st.sampled_from("abc"),
    st.integers(0, 5),
)


def act(leases: Bare, action: str, worker: str, index: int) -> tuple[list[Key], list[Key]]:
    """Do it; the keys that landed, and those that were cancelled."""
    key = Key(3, index)
    match action:
        case "take":
            leases.take(worker, index, version=3)
        case "double":
            for found, holder, _ in leases.undoubled(version=3)[:index]:
                assert worker == holder or leases.double(worker, found).key == found
        case "expect":
            leases.expect(worker, key, 0)
        case "land":
            return [key] if leases.land(key) else [], []
        case "fail":
            leases.fail(worker, key, "")
        case "release":
            leases.release(worker)
        case "adopt":
            leases.adopt(worker, key)
        case "add":
            leases.add(list(leases.tickets.values()))
        case "withdraw":
            was_open = key in leases.tickets
            leases.withdraw({key})
            return [], [key] if was_open and key not in leases.tickets else []
    return [], []


@given(st.lists(ACTIONS, max_size=60))
def test_no_ticket_is_ever_lost_or_counted_twice(actions: list[tuple[str, str, int]]) -> None:
    leases = leased(tickets(6), attempts=10**6)
    landed: list[Key] = []
    cancelled: list[Key] = []
    for action in actions:
        now_landed, now_cancelled = act(leases, *action)
        landed += now_landed
        cancelled += now_cancelled
        held = {key for held in leases._running.values() for key in held} | set().union(*leases._coming.values())
        assert held | set(leases._queue) == set(leases.tickets), "every open ticket is queued or held"
        assert not held & set(leases._queue) and len(set(leases._queue)) == leases.queued
    for worker in "abc":
        leases.release(worker)
    queued = [ticket.key for ticket in leases.take("z", 100, version=3)]
    assert sorted(landed + cancelled + queued) == [Key(3, index) for index in range(6)]
