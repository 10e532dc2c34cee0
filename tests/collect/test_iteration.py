"""One iteration's tickets and figures, without a fleet."""

from __future__ import annotations

from pathlib import Path

import pytest

from digirl_dist.collect.iteration import Closing, Iteration, Terms
from digirl_dist.collect.iteration_stats import IterationStats
from digirl_dist.collect.leases import Leases
from digirl_dist.storage.trajectory_store import Store
from digirl_dist.tasks import Round, Task, Ticket
from digirl_dist.trajectory import Observation, Step, Trajectory


class Clock:
    """A clock that a test sets."""

    at = 100.0

    def __call__(self) -> float:
        return self.at


def episode(ticket: Ticket) -> Trajectory:
    seen = Observation("seen", None, None)
    step = Step(seen, 0, -0.5, 1.0, terminated=True, truncated=False)
    return Trajectory(ticket, f"{ticket.index}-{ticket.purpose}", "w1", 0, [step], seen, success=True)


def test_an_episode_that_is_carried_over_and_ends_while_the_policy_is_measured_counts_in_the_next_iteration(
    tmp_path: Path,
) -> None:
    """It came home in the measurement, and was run again: the iteration that it was of accepted no more."""
    clock, store = Clock(), Store(tmp_path / "trajectories")
    leases = Leases(3, clock)
    first = [Ticket(0, index, Task("t"), index, 0) for index in range(2)]
    iteration = Iteration(first, leases, store, Terms(Closing(0.5)), clock)
    leases.take("w1", 2, 0)
    assert iteration.land(episode(first[0]))
    stats = IterationStats(Round(0), clock)
    assert iteration.close(stats).carried == 1

    measured = Iteration([Ticket(1, 0, Task("t"), 0, 1, purpose="evaluate")], leases, store, Terms(Closing(0.5)), clock)
    assert measured.counts_in(first[1].key) == Round(1)
    assert measured.land(episode(first[1]))
    assert list(store.landed(Round(1))) == [first[1].key]

    following = Iteration([Ticket(1, 0, Task("t"), 5, 1)], leases, store, Terms(), clock)
    assert following.missing == 1 and first[1].key not in leases.tickets


def test_a_slot_that_begins_while_others_run_is_no_overhead() -> None:
    """Such as that of a worker that joins late: the time until its first action counted as overhead."""
    clock = Clock()
    stats = IterationStats(Round(1), clock)
    stats.ended("w1", 60.0, 0.0)  # carried in, from an iteration before
    for slot in range(2):
        clock.at += 1.0
        stats.acting("w1", slot)
    clock.at += 10.0
    stats.ended("w1", 9.0, 0.0)
    clock.at += 1.0
    stats.acting("w2", 0)
    assert stats.result([], 0, 0, 0).acting_at == 102.0


@pytest.mark.parametrize(("seconds", "age_s"), [(3.0, 0.0), (1e9, 0.0), (1e9, 1e9), (0.0, 1e9)])
def test_a_busy_share_is_one_at_most_whatever_workers_say_or_bring_from_before(seconds: float, age_s: float) -> None:
    clock = Clock()
    stats = IterationStats(Round(0), clock)
    stats.has_slots("w1", 1)
    stats.has_slots("w2", 1)
    for _ in range(3):
        stats.ended("w1", seconds, age_s)
        clock.at += 1.0
    stats.ended("w2", 0.5, 0.0)
    busy = stats.result([], 0, 0, 0).busy
    assert busy is not None and 0.0 <= busy <= 1.0
