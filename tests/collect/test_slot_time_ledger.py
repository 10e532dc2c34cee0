import pytest

from digirl_dist.collect.accounts import SlotTimeLedger


class Clock:
    """A clock that a test sets."""

    at = 100.0

    def __call__(self) -> float:
        return self.at


@pytest.fixture
def clock() -> Clock:
    return Clock()


@pytest.fixture
def ledger(clock: Clock) -> SlotTimeLedger:
    return SlotTimeLedger(clock)


def test_of_a_worker_that_was_never_lost_only_its_own_seconds_are_booked(clock: Clock, ledger: SlotTimeLedger) -> None:
    ledger.joined("w1", 2)
    clock.at += 10
    assert ledger.book("w1", {"step": 19.9}) == {"step": 19.9}


def test_what_died_with_a_program_was_time_away(clock: Clock, ledger: SlotTimeLedger) -> None:
    ledger.joined("w1", 2)
    ledger.lost("w1")
    ledger.joined("w1", 2)
    clock.at += 10
    assert ledger.book("w1", {"boot": 2.0, "step": 6.0}) == {"boot": 2.0, "step": 6.0, "away": 12.0}
    clock.at += 5
    assert ledger.book("w1", {"step": 9.9}) == {"step": 9.9}, "it was there all the time"


def test_a_worker_that_is_away_is_booked_until_it_is_back(clock: Clock, ledger: SlotTimeLedger) -> None:
    ledger.joined("w1", 2)
    clock.at += 1
    ledger.lost("w1")
    clock.at += 9
    assert ledger.book("w1") == {"away": 20.0}
    clock.at += 10
    assert ledger.book("w1") == {"away": 20.0}


def test_no_second_is_booked_twice_when_only_the_link_was_down(clock: Clock, ledger: SlotTimeLedger) -> None:
    """The program went on and tells of all its time, of which half was booked as away before."""
    ledger.joined("w1", 1)
    ledger.lost("w1")
    clock.at += 10
    assert ledger.book("w1") == {"away": 10.0}
    ledger.joined("w1", 1)
    clock.at += 10
    assert ledger.book("w1", {"step": 15.0, "barrier": 5.0}) == {"step": 10.0}, "who has no host waits"


def test_nothing_is_booked_for_a_worker_that_was_never_there_or_was_let_go(ledger: SlotTimeLedger) -> None:
    assert ledger.book("w1") == {}
    ledger.joined("w1", 1)
    ledger.left("w1")
    assert ledger.book("w1") == {}


def test_seconds_of_an_episode_that_was_under_way_when_the_worker_came_back_are_not_booked_twice(
    clock: Clock, ledger: SlotTimeLedger
) -> None:
    """They were missing from the first account after the loss, hence away; the program tells of them afterwards."""
    ledger.joined("w1", 1)
    ledger.lost("w1")
    clock.at += 10
    ledger.joined("w1", 1)
    booked = sum(ledger.book("w1", {"barrier": 2.0}).values())
    clock.at += 5
    booked += sum(ledger.book("w1", {"step": 12.0, "barrier": 1.0}).values())
    assert booked == 15.0


def test_what_a_worker_tells_when_it_is_back_was_not_away(clock: Clock, ledger: SlotTimeLedger) -> None:
    ledger.joined("w1", 1)
    clock.at += 10
    ledger.lost("w1")
    clock.at += 2
    ledger.joined("w1", 1)
    assert ledger.book("w1", {"step": 8.0, "barrier": 4.0}) == {"step": 8.0, "barrier": 4.0}
    clock.at += 3
    assert ledger.book("w1", {"step": 3.0}) == {"step": 3.0}


def test_what_passed_before_this_host_began_is_no_time_of_this_run(clock: Clock, ledger: SlotTimeLedger) -> None:
    """An orphan that waited a minute for the host to come back, and has worked for ten seconds since."""
    ledger.joined("w1", 2)
    clock.at += 10
    assert ledger.book("w1", {"step": 14.0, "reset": 4.0, "barrier": 120.0}) == {
        "step": 14.0,
        "reset": 4.0,
        "barrier": 2.0,
    }
    clock.at += 5
    assert ledger.book("w1", {"step": 30.0}) == {"step": 10.0}


def test_work_after_a_loss_is_not_squeezed_by_the_wait_before_it(clock: Clock, ledger: SlotTimeLedger) -> None:
    ledger.joined("w1", 2)
    ledger.lost("w1")
    ledger.joined("w1", 2)
    clock.at += 10
    assert ledger.book("w1", {"step": 12.0, "barrier": 120.0}) == {"step": 12.0, "barrier": 8.0}
