"""Faults that are deterministic are recognised before each ticket has cost five attempts."""

from __future__ import annotations

from itertools import count
from pathlib import Path

import pytest
from hand_pool import HandPool

from digirl_dist.collect.equal_faults import EqualFaults
from digirl_dist.collect.leases import Leases
from digirl_dist.errors import CollectionError
from digirl_dist.tasks import Key, Task, Ticket

BROKEN = "emulator {} failed in its step: KeyError: 'colour' (at /home/ann/env.py:8 in step)"


def tickets(count: int) -> list[Ticket]:
    return [Ticket(0, index, Task("t"), index, 0) for index in range(count)]


def failing(leases: Leases, workers: list[str], reason: str = BROKEN) -> int:
    """Fails tickets on the workers in turn; returns how many attempts it took until nothing more was asked."""
    for attempt in range(100):
        worker = workers[attempt % len(workers)]
        taken = leases.take(worker, 1, 0, workers) or leases.take(worker, 1, 0)
        if not taken or leases.faults.everywhere:
            return attempt
        leases.fail(worker, taken[0].key, reason.format(attempt), workers)
    return 100


@pytest.mark.parametrize("workers", [["w1"], ["w1", "w2", "w3"]])
def test_deterministic_faults_end_the_run_after_a_few_attempts(workers: list[str], tmp_path: Path) -> None:
    pool = HandPool(tmp_path, leases := Leases(5, lambda: 0.0))
    pool.asked(tickets(16))
    assert failing(leases, workers) == 4
    with pytest.raises(CollectionError, match=r"iteration 0: .* failed alike on w1.*not in a machine.*env.py:8"):
        pool.turn()


def test_a_ticket_that_is_taken_back_is_no_episode_that_landed() -> None:
    """A caller cancelled it, or what it belongs to broke."""
    leases = Leases(5, lambda: 0.0)
    leases.add(tickets(16))
    (begun,) = leases.take("w1", 1, 0)
    assert leases.take_back(begun.key) and not leases.take_back(begun.key)
    assert failing(leases, ["w1"]) == 4


def test_deterministic_faults_of_some_episodes_are_reported_once() -> None:
    faults = EqualFaults()
    faults.landed()
    faults.failed("w1", Key(0, 1), BROKEN.format(0), ["w1", "w2"])
    assert faults.news() == "", "one ticket may be unlucky"
    faults.failed("w2", Key(0, 2), BROKEN.format(3), ["w1", "w2"])
    assert faults.news().startswith("2 tickets failed alike on w1, w2, so the fault is in the code")
    for number in range(20):
        faults.failed("w2", Key(0, number), BROKEN.format(number), ["w2"])
    assert faults.news() == "" and not faults.everywhere, "some episodes land"


def test_tickets_that_failed_once_at_one_line_are_not_kept_for_ever() -> None:
    faults = EqualFaults()
    faults.landed()
    for number in range(10_000):
        faults.failed("w1", Key(number, 0), BROKEN.format(0), ["w1"])
    assert sum(len(place.keys) for place in faults._places.values()) <= 100
    assert faults.news().startswith("100 tickets failed alike on w1") and faults.news() == ""


@pytest.mark.parametrize(
    "reason",
    [
        "emulator 0 did not answer its step in time",
        "emulator 1 failed in its reset: ConnectionError: refused (at /home/ann/env.py:8 in reset)",
        "emulator 1 failed in its reset: RuntimeError: the device is on fire (at /home/ann/env.py:8 in reset)",
        "emulator 1 failed in its reset: OSError: no space (at /home/ann/env.py:8 in reset)",
    ],
)
def test_what_may_pass_is_tried_as_often_as_before(reason: str) -> None:
    leases = Leases(5, count(0.0, 10.0).__next__)
    leases.add(tickets(4))
    assert failing(leases, ["w1"], reason) == 20 and leases.faults.news() == ""


def test_what_cannot_be_pickled_is_deterministic_too() -> None:
    leases = Leases(5, lambda: 0.0)
    leases.add(tickets(4))
    reason = "emulator 0 failed in its step: PicklingError: Can't pickle f (at /a/env.py:10 in more); on a worker (x)"
    assert failing(leases, ["w1"], reason) == 4


def test_one_of_two_workers_cannot_end_a_run() -> None:
    faults = EqualFaults()
    for number in range(50):
        faults.failed("liar", Key(0, number), BROKEN.format(0), ["liar", "honest"])
    assert not faults.everywhere
    faults.failed("honest", Key(0, 1), BROKEN.format(0).replace("env.py:8", "env.py:9"), ["liar", "honest"])
    assert not faults.everywhere, "it failed elsewhere"
