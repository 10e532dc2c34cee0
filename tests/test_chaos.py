"""Every kind of fault strikes one run once: it is noticed, explained by ``why`` and got over; nothing is lost."""

from __future__ import annotations

import os
import shutil
from collections.abc import Sequence

import pytest

from chaos.__main__ import strike
from chaos.faults import FAULTS, Fault, faults
from chaos.invariants import Invariant
from chaos.trial import Trial, plan
from digirl_dist.settings import Inference

pytestmark = [pytest.mark.system, pytest.mark.timeout(400), pytest.mark.long_file(110)]


@pytest.fixture(scope="module")
def struck() -> tuple[Sequence[Trial], Sequence[Invariant]]:
    if shutil.which("sshd", path="/usr/sbin:/usr/local/sbin:/sbin:" + os.environ.get("PATH", "")) is None:
        (pytest.fail if os.environ.get("CI") == "true" else pytest.skip)("apt-get install openssh-server")
    kinds = faults(Inference.worker, root=os.geteuid() == 0)
    return strike(kinds, len(kinds), seed=0, inference=Inference.worker)


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
