"""Some mutated inputs of each kind end in an answer or an error of ours, at little cost."""

from __future__ import annotations

import os
from pathlib import Path
from random import Random

import pytest

from digirl_dist.errors import ProtocolError
from fuzz.campaign import LIMITS, Limits, campaign
from fuzz.mutation import mutated, pages, with_right_checksums
from fuzz.target import Target
from fuzz.targets import TARGETS, Parquet

pytestmark = [pytest.mark.component, pytest.mark.long_file(20)]

CASES = 300
"""Of each kind; ``script/fuzz`` feeds as many as it is asked for."""


@pytest.mark.parametrize("kind", TARGETS)
def test_every_input_ends_in_an_answer_or_an_error_of_ours(kind: str) -> None:
    result = campaign(kind, 0, CASES, LIMITS)
    assert not result.failures, str(result)
    assert result.answered < CASES, "no input was refused"


class Bad(Target):
    """Reads one byte, and goes wrong in each way that a campaign must notice."""

    samples = (b"\x09",)

    def case(self, random: Random) -> bytes:
        return bytes([random.randrange(7)])

    def feed(self, data: bytes) -> None:
        match data[0]:
            case 0:
                raise ProtocolError("as it should be")
            case 1:
                raise KeyError("a bug")
            case 2:
                os.abort()
            case 3:
                bytearray(2 << 30)
            case 4:
                sum(range(20_000_000))


@pytest.mark.nightly
def test_a_campaign_notices_errors_deaths_and_costs_and_goes_on(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(TARGETS, "bad", Bad)
    result = campaign("bad", 0, 40, Limits(cpu_s=0.1))
    kinds = {failure.split(" at ")[0] for failure in result.failures}
    assert kinds == {"KeyError", "MemoryError", "too slow", "the process ended with status -6"}
    assert 0 < result.answered < 40
    again = campaign("bad", 0, 40, Limits(cpu_s=0.1))
    assert {name: times for name, (_, _, times) in again.failures.items()} == {
        name: times for name, (_, _, times) in result.failures.items()
    }


def test_a_case_follows_from_kind_seed_and_number(tmp_path: Path) -> None:
    for kind in ("lines", "parquet", "yaml"):
        one, other = (TARGETS[kind](tmp_path / name) for name in ("one", "other"))
        assert all(one.case(Random(f"{kind}/0/{n}")) == other.case(Random(f"{kind}/0/{n}")) for n in range(50))
    assert mutated(Random(1), [b"abc"]) != mutated(Random(2), [b"abc"])


def test_checksums_that_are_put_right_are_right(tmp_path: Path) -> None:
    sample = Parquet(tmp_path).samples[0]
    places = pages(sample)
    assert len(places) > 10 and with_right_checksums(sample, places) == sample
