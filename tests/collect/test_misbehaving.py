"""Worker programs that do not keep their word cost retries and are named; the iteration completes."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import pytest
from collector_site import Kind, keys, site, tickets
from process_watch import nothing_is_left_of
from run_files import events

from digirl_dist.child_process import SOURCE
from digirl_dist.fleet import roster
from digirl_dist.tasks import Key

pytestmark = [pytest.mark.system, pytest.mark.long]
DROPS, FORGETS, CLAIMS = "localhost-0", "localhost-1", "localhost-2"
WAYS = {DROPS: "drops", FORGETS: "forgets", CLAIMS: "claims"}
"""See ``tests/misbehaving``. A fourth worker is honest."""


@pytest.fixture
def misbehaving(monkeypatch: pytest.MonkeyPatch) -> None:
    path = f"PYTHONPATH={SOURCE}:{Path(__file__).parent.parent / 'misbehaving'}"
    honest = roster.this_python(None)

    def python(connection: Any) -> list[str]:
        how = WAYS.get(connection.worker)
        return honest if how is None else ["env", path, f"MISBEHAVIOUR={how}", sys.executable]

    monkeypatch.setattr(roster, "this_python", python)


@pytest.mark.nightly
@pytest.mark.usefixtures("misbehaving")
def test_what_programs_lose_without_a_word_is_run_again_and_what_they_never_got_is_refused(tmp_path: Path) -> None:
    with site(tmp_path, Kind.fleet, workers=4, speculate=False, step_s=1.0) as here:
        result = here.collect(tickets(16))
        assert keys(result) == [Key(0, index) for index in range(16)]
        assert sorted(event["ticket"] for event in events(tmp_path, "episode")) == list(range(16))
        retried = events(tmp_path, "episode_retried")
        assert sorted(event["worker"] for event in retried) == [DROPS, FORGETS]
        assert all("lost the ticket without a word" in event["reason"] for event in retried)
        refused = events(tmp_path, "claims_refused")
        assert refused and {event["worker"] for event in refused} == {CLAIMS}
        assert {name for event in refused for name in event["tickets"]} == {"t0.77", "t5.1"}
        assert {event["worker"] for event in events(tmp_path, "worker_lost")} <= {CLAIMS}
    nothing_is_left_of(tmp_path)
