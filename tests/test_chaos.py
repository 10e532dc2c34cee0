"""Every kind of fault strikes one run once: it is noticed, explained by ``why`` and got over; nothing is lost."""

from __future__ import annotations

import os
from collections.abc import Sequence

import pytest

from chaos.__main__ import strike
from chaos.faults import FAULTS, Fault, faults, lies
from chaos.invariants import Invariant
from chaos.soak import Sample, growth
from chaos.trial import Trial, plan
from digirl_dist.settings import Inference

pytestmark = [pytest.mark.system, pytest.mark.timeout(400), pytest.mark.long_file(100)]


@pytest.fixture(scope="module")
def struck(sshd_is_installed: None) -> tuple[Sequence[Trial], Sequence[Invariant]]:
    kinds = faults(Inference.worker, root=os.geteuid() == 0)
    return strike(kinds, len(kinds), seed=0, inference=Inference.worker)


@pytest.mark.nightly
@pytest.mark.parametrize("fault", faults(Inference.worker, root=True), ids=lambda fault: fault.name)
def test_a_fault_is_noticed_and_explained_and_got_over(
    fault: Fault, struck: tuple[Sequence[Trial], Sequence[Invariant]]
) -> None:
    if fault.root and os.geteuid() != 0:
        pytest.skip("only root can make a small disk")
    (trial,) = [trial for trial in struck[0] if trial.fault == fault.name]
    assert not trial.problem
    assert trial.recovered_s is not None
    assert trial.noticed_s is not None or not fault.events


def test_all_invariants_hold_after_all_kinds_of_faults(
    struck: tuple[Sequence[Trial], Sequence[Invariant]],
) -> None:
    assert {one.name: one.broken for one in struck[1] if one.broken} == {}


@pytest.mark.unit
def test_a_seed_decides_the_plan_and_each_kind_comes_equally_often() -> None:
    assert plan(FAULTS, 60, 1) == plan(FAULTS, 60, 1) != plan(FAULTS, 60, 2)
    counts = [sum(fault.name == kind.name for fault in plan(FAULTS, 60, 1)) for kind in FAULTS]
    assert max(counts) - min(counts) <= 1


@pytest.mark.unit
def test_lies_are_drawn_beside_all_other_faults() -> None:
    kinds = [*faults(Inference.worker, root=True), *lies()]
    assert len(lies()) >= 60 and all(fault.lie is not None for fault in lies())
    drawn = plan(kinds, len(kinds), 0)
    assert {fault.name for fault in drawn} == {fault.name for fault in kinds}
    assert {fault.lie is None for fault in drawn[:40]} == {True, False}


@pytest.mark.unit
def test_what_grows_in_a_soak_is_seen_by_role_and_kind() -> None:
    samples = [Sample(number, "host", 100.0 + number, 30, 9) for number in range(100)]
    found = growth([*samples, Sample(3, "courier", 1.0, 1, 1)], 100)
    assert found == {("host", "mb"): (166.5, 193.0), ("host", "descriptors"): (30, 30), ("host", "threads"): (9, 9)}
