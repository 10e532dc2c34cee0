"""What the workers' speeds say about the tail of an iteration."""

from __future__ import annotations

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from digirl_dist.collect.leases import Leases
from digirl_dist.collect.pace import Lengths, Pace
from digirl_dist.tasks import Task, Ticket


def pace(**seconds: float) -> Pace:
    found = Pace()
    for worker, each in seconds.items():
        found.ended(worker, each)
    return found


def test_a_worker_without_episodes_counts_as_average() -> None:
    assert Pace().of("a") is None
    assert pace(a=1.0, b=3.0).of("c") == 2.0


def test_what_a_worker_says_of_its_seconds_is_not_trusted_blindly() -> None:
    assert pace(a=float("nan"), b=-1.0, c=float("inf"), d=0.0, e=5e-324, f=1e308).of("a") is None
    assert pace(liar=0.0, honest=1.0).gain("liar", 2.0, "honest") > 0, "what it holds is doubled nevertheless"


def test_only_workers_much_slower_than_the_fastest_are_to_begin_nothing_near_the_end() -> None:
    lengths = Lengths()
    for worker, seconds in (("fast", 1.0), ("fair", 1.2), ("slow", 8.0)):
        lengths.ended(worker, "t", seconds)
    slots = {"fast": 4, "fair": 0, "slow": 4, "new": 4}
    assert lengths.slow(slots, 9.0) == {"slow": pytest.approx(2.0)}, "four each second, and one each two seconds"
    assert lengths.slow({"slow": 4, "new": 4}, 9.0) == {}, "there is no other worker any more"
    assert Lengths().slow(slots, 9.0) == {}
    assert lengths.seconds("slow", "t") == pytest.approx(8.0) and lengths.seconds("new", "t") is None


@given(st.lists(st.tuples(*map(st.sampled_from, ("abcd", "tu")), st.floats(0)), min_size=1), st.integers(1, 500))
@example([*[("a", "t", 1.0), ("a", "u", 9.0)] * 5, ("b", "u", 5e-324)], 1)
@example([("a", "t", 1e-6), ("a", "u", 9.0), ("b", "t", 1e308)], 1)
@example([(f"{n}", "t", seconds) for n in range(60) for seconds in (1e-6, *[1e9] * 30)], 1)
def test_somebody_may_always_take_a_ticket(claims: list[tuple[str, str, float]], queued: int) -> None:
    lengths = Lengths()
    for claim in claims:
        lengths.ended(*claim)
    workers = {worker for worker, _, _ in claims}
    assert set(lengths.slow(dict.fromkeys([*workers, "new"], 2), queued * lengths.of("t"))) < workers


def test_a_ticket_that_would_end_too_late_is_left_to_others() -> None:
    lengths = Lengths()
    for _ in range(20):
        for task, seconds in (("short", 1.0), ("long", 9.0)):
            lengths.ended("fast", task, seconds), lengths.ended("slow", task, 4 * seconds)
    leases = Leases(3, lambda: 0.0, lengths=lengths)
    leases.add(asked("short", "long", "long"))
    assert leases.queued_length == pytest.approx(sum(map(lengths.of, ("short", "long", "long"))))
    assert [one.task.id for one in leases.take("slow", 3, 0, most_s=12.0)] == ["short"]
    assert [one.task.id for one in leases.take("new", 1, 0, most_s=12.0)] == ["long"], "nothing is known of it"
    assert [one.task.id for one in leases.take("fast", 3, 0)] == ["long"]


def test_a_duplicate_pays_on_a_faster_worker_or_when_the_original_is_overdue() -> None:
    known = pace(fast=1.0, slow=4.0)
    assert known.gain("slow", 1.0, "fast") == 4.0 - 1.0 - 1.0
    assert known.gain("slow", 3.5, "fast") < 0, "nearly there"
    assert known.gain("fast", 0.5, "slow") < 0 and known.gain("fast", 0.5, "fast") < 0
    assert known.gain("fast", 1.5, "fast") == 1.5 and known.gain("slow", 5.0, "slow") == 5.0, "it may hang"
    assert Pace().gain("slow", 100.0, "fast") == 0


def asked(*tasks: str, iteration: int = 0) -> list[Ticket]:
    return [Ticket(iteration, index, Task(task), index, 0) for index, task in enumerate(tasks)]


def test_the_longest_tickets_are_leased_first_whoever_ran_them_before() -> None:
    lengths = Lengths()
    for worker, slowness in (("fast", 1.0), ("slow", 4.0)) * 20:
        for task, seconds in (("short", 1.0), ("long", 9.0)):
            lengths.ended(worker, task, slowness * seconds)
    lengths.ended("slow", "short", 4.0)
    leases = Leases(3, lambda: 0.0, lengths=lengths)
    leases.add(asked("short", "new", "long", "short", "long"))
    leases.add(asked("long", iteration=1))
    taken = leases.take("fast", 6, 0)
    assert [(one.task.id, one.iteration) for one in taken] == [
        *[("long", 0), ("long", 0), ("new", 0), ("short", 0), ("short", 0)],
        ("long", 1),
    ]
    assert [one.index for one in taken] == [2, 4, 1, 0, 3, 0], "equal ones keep their order"


def test_lengths_outlive_a_process_in_its_events_and_damaged_ones_are_passed_over() -> None:
    told = [{"event": "episode", "worker": "w", "task": task, "seconds": s} for task, s in (("a", 1.0), ("b", 3.0))]
    damaged = [{"event": "episode", "worker": "w", "task": "a", "seconds": "long"}, {"event": "episode"}, {}]
    wrong = [{**told[0], "seconds": value} for value in (float("nan"), -1.0, float("inf"), 0.0)]
    found = Lengths([*damaged, *told, *wrong]).longest_first(asked("a", "b"))
    assert [one.task.id for one in found] == ["b", "a"]
    assert [one.task.id for one in Lengths().longest_first(asked("a", "b"))] == ["a", "b"]


def test_of_more_tasks_than_fit_the_oldest_are_forgotten() -> None:
    lengths = Lengths()
    for number in range(10_001):
        lengths.ended("w", f"{number}", 1.0 + (number == 0))
    assert len(lengths._tasks) == 10_000 and "0" not in lengths._tasks
