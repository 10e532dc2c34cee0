"""What the workers' speeds say about the tail of an iteration."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from digirl_dist.collect.dispatch import Pace


def pace(**seconds: float) -> Pace:
    found = Pace()
    for worker, each in seconds.items():
        found.ended(worker, each)
    return found


def test_a_worker_without_episodes_counts_as_average() -> None:
    assert Pace().of("a") is None
    assert pace(a=1.0, b=3.0).of("c") == 2.0


def test_what_a_worker_says_of_its_seconds_is_not_trusted_blindly() -> None:
    assert pace(a=float("nan"), b=-1.0, c=float("inf")).of("a") is None


def test_a_slow_worker_begins_nothing_near_the_end() -> None:
    slots = {"fast": 4, "slow": 4}
    assert pace(fast=1.0, slow=8.0).drain(slots).is_in_time("slow", 100)
    assert not pace(fast=1.0, slow=8.0).drain(slots).is_in_time("slow", 8)
    assert pace(fast=1.0, slow=8.0).drain({"slow": 4}).is_in_time("slow", 8), "there is no other worker any more"


@given(st.dictionaries(st.sampled_from("abcd"), st.floats(0.01, 1e4), min_size=1), st.integers(1, 500))
def test_somebody_may_always_take_a_ticket(seconds: dict[str, float], queued: int) -> None:
    slots = dict.fromkeys("abcd", 2)
    drain = pace(**seconds).drain(slots)
    assert any(drain.is_in_time(name, queued) for name in slots)


def test_a_duplicate_pays_on_a_faster_worker_or_when_the_original_is_overdue() -> None:
    known = pace(fast=1.0, slow=4.0)
    assert known.gain("slow", 1.0, "fast") == 4.0 - 1.0 - 1.0
    assert known.gain("slow", 3.5, "fast") < 0, "nearly there"
    assert known.gain("fast", 0.5, "slow") < 0 and known.gain("fast", 0.5, "fast") < 0
    assert known.gain("fast", 1.5, "fast") == 1.5 and known.gain("slow", 5.0, "slow") == 5.0, "it may hang"
    assert Pace().gain("slow", 100.0, "fast") == 0
