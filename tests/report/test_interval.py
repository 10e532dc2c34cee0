"""Confidence intervals."""

from __future__ import annotations

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from digirl_dist.report.interval import wilson


@given(st.integers(1, 500).flatmap(lambda trials: st.tuples(st.integers(0, trials), st.just(trials))))
def test_the_bounds_are_where_the_score_test_just_rejects(drawn: tuple[int, int]) -> None:
    """Wilson's bounds solve (share - p)^2 = z^2 p (1 - p) / n."""
    successes, trials = drawn
    for bound in wilson(successes, trials):
        score = abs(successes / trials - bound)
        assert score == pytest.approx(1.959963984540054 * math.sqrt(bound * (1 - bound) / trials), abs=1e-6)


def test_nothing_measured_says_nothing() -> None:
    assert wilson(0, 0) == (0.0, 1.0)
