"""The simulator finds bugs: each planted one within a few seeds."""

from __future__ import annotations

import pytest

from simulate.planted import BUGS, Patch, orphan_that_waits_for_its_policy
from simulate.search import examine

pytestmark = pytest.mark.component

_SEEDS = 300


@pytest.mark.parametrize(
    "bug",
    [pytest.param(bug, marks=[pytest.mark.nightly] if bug is orphan_that_waits_for_its_policy else []) for bug in BUGS],
    ids=lambda bug: str(bug.__name__),
)
def test_a_planted_bug_is_found(bug: object, monkeypatch: Patch) -> None:
    assert callable(bug)
    bug(monkeypatch)
    assert any(examine(seed).promise for seed in range(_SEEDS))
