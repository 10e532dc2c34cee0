"""One worker of three lies over a real SSH server: the run goes on, and the liar is named and put out of service.

``script/chaos --lies N`` tells all the lies.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import get_args

import pytest

from chaos.__main__ import judge_by_lies
from chaos.hostility import Verdict
from chaos.invariants import Invariant
from chaos.lies import LIES
from digirl_dist.protocol.messages import WorkerMessage

pytestmark = [pytest.mark.system, pytest.mark.timeout(400), pytest.mark.long_file(120)]
HELD = next(name for name in LIES if name.startswith("heartbeat.held is "))
TOLD = [HELD, "each ticket fails at once", "a file without end"]


@pytest.fixture(scope="module")
def told(sshd_is_installed: None) -> tuple[Verdict, Sequence[Invariant]]:
    return judge_by_lies([LIES[name] for name in TOLD], alone_s=0.0)  # how fast the others are is not asked here


@pytest.mark.nightly
def test_a_liar_is_named_and_out_of_service(told: tuple[Verdict, Sequence[Invariant]]) -> None:
    assert {strike.lie.name: strike.problem for strike in told[0].strikes} == dict.fromkeys(TOLD, "")


@pytest.mark.nightly
def test_nothing_is_lost_repeated_or_forged_and_the_run_goes_on(told: tuple[Verdict, Sequence[Invariant]]) -> None:
    untimed = [one for one in told[1] if not one.name.startswith("the others")]
    assert {one.name: one.broken for one in untimed if one.broken} == {}
    assert told[0].beside > 0


@pytest.mark.unit
def test_there_are_lies_about_every_message() -> None:
    assert len(LIES) >= 60
    tags = {kind.__struct_config__.tag for kind in get_args(WorkerMessage)} - {"ask", "broken"}
    assert all(any(name.startswith(f"{tag}.") for name in LIES) for tag in tags)
