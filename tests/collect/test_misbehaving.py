"""A worker program that does not keep its word costs retries and is named; the iteration completes."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import pytest
from collector_site import Kind, Site, keys, site, tickets
from process_watch import nothing_is_left_of
from run_files import events

from digirl_dist.child_process import SOURCE
from digirl_dist.fleet import roster
from digirl_dist.tasks import Key

pytestmark = [pytest.mark.system, pytest.mark.long]
MISBEHAVING = "localhost-0"


@pytest.fixture
def misbehave(monkeypatch: pytest.MonkeyPatch) -> Any:
    """Has the worker program of one of the workers misbehave (see ``tests/misbehaving``)."""

    def begin(how: str) -> None:
        path = f"PYTHONPATH={SOURCE}:{Path(__file__).parent.parent / 'misbehaving'}"

        def python(connection: Any) -> list[str]:
            return ["env", path, f"MISBEHAVIOUR={how}", sys.executable] if connection.worker == MISBEHAVING else honest

        honest = roster.this_python(None)
        monkeypatch.setattr(roster, "this_python", python)

    return begin


def collect(here: Site, count: int) -> None:
    """Every ticket comes home exactly once."""
    result = here.collect(tickets(count))
    assert keys(result) == [Key(0, index) for index in range(count)]
    landed = [event["ticket"] for event in events(here.folder.root, "episode")]
    assert sorted(landed) == list(range(count))
    assert {worker_result.worker for worker_result in result.worker_results} == {"localhost-0", "localhost-1"}


@pytest.mark.parametrize("how", ["drops", "forgets"])
def test_a_ticket_that_a_program_lost_without_a_word_is_run_again(tmp_path: Path, misbehave: Any, how: str) -> None:
    misbehave(how)
    with site(tmp_path, Kind.fleet, speculate=False, step_s=0.2) as here:
        collect(here, 12)
        [again] = events(here.folder.root, "episode_retried")
        assert again["worker"] == MISBEHAVING and "lost the ticket without a word" in again["reason"]
        assert not events(here.folder.root, "worker_lost")
    nothing_is_left_of(tmp_path)


def test_a_program_that_claims_tickets_it_never_got_is_refused_them(tmp_path: Path, misbehave: Any) -> None:
    misbehave("claims")
    with site(tmp_path, Kind.fleet, speculate=False, step_s=1.0) as here:
        collect(here, 12)
        refused = events(here.folder.root, "claims_refused")
        assert refused and {event["worker"] for event in refused} == {MISBEHAVING}
        claimed = {tuple(ticket) for event in refused for ticket in event["tickets"]}
        assert claimed == {(0, 77, "train"), (5, 1, "train")}
        assert not events(here.folder.root, "episode_retried")
        assert {event["worker"] for event in events(here.folder.root, "worker_lost")} <= {MISBEHAVING}
    nothing_is_left_of(tmp_path)
