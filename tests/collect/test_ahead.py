"""Tickets that run twice, and collection ahead: each episode still counts exactly once."""

from __future__ import annotations

import time
from pathlib import Path

import pytest
from collector_site import Kind, keys, site, tickets
from process_watch import eventually, nothing_is_left_of

from digirl_dist.errors import CollectionError
from digirl_dist.tasks import Key, Round

pytestmark = [pytest.mark.system, pytest.mark.long]


@pytest.mark.nightly
def test_a_ticket_that_hangs_is_run_a_second_time_elsewhere(tmp_path: Path) -> None:
    trouble = {"at": "step", "suffers": "hang", "once": str(tmp_path / "once")}
    with site(tmp_path / "run", Kind.fleet, step_limit_s=8) as here:
        here.collect(tickets(4))
        here.checkpoint = here.save(1)
        result = here.collect(tickets(4, iteration=1, **trouble))
        assert keys(result) == [Key(1, index) for index in range(4)]
        assert here.count("episode_doubled") >= 1 and here.count("episode_retried") == 0, (
            "the limit of a step was waited for"
        )
        time.sleep(8.0)
        here.checkpoint = here.save(2)
        result = here.collect(tickets(4, iteration=2))
        lost = sum(worker_result.slot_seconds.get("speculation", 0.0) for worker_result in result.worker_results)
    assert lost == pytest.approx(8.0, rel=0.3), "the loser's time is booked"


@pytest.mark.parametrize("kind", [Kind.inline_ahead, Kind.fleet_ahead])
def test_the_next_iteration_begins_while_the_host_learns(tmp_path: Path, kind: Kind) -> None:
    with site(tmp_path, kind, iterations=3, workers=1) as here:
        collected = []
        for number in range(3):
            here.checkpoint = here.save(number)
            collected.append(here.collect(tickets(6, iteration=number)))
            here.store.append(collected[-1])
            if number == 0:
                eventually(lambda: len(here.store.landed(Round(1))) == 6, 20, "episodes of the next iteration")
        assert [keys(result) for result in collected] == [[Key(n, k) for k in range(6)] for n in range(3)]
        staleness = [{number - t.ticket.policy_version for t in h.trajectories} for number, h in enumerate(collected)]
        assert staleness[:2] == [{0}, {1}] and staleness[2] <= {0, 1}
    nothing_is_left_of(tmp_path)


def test_an_error_of_the_background_surfaces_in_the_loop_with_its_traceback(tmp_path: Path) -> None:
    with site(tmp_path, Kind.inline) as here:
        broken = tickets(4, iteration=1, at="reset", suffers="raise")
        for begun in (tickets(2), broken):
            here.collector.begin(here.checkpoint, begun)
        assert len(here.collect(tickets(2)).trajectories) == 2
        with pytest.raises(CollectionError, match="the device is on fire") as caught:
            here.collector.collect(here.save(1), broken)
    assert any(entry.name == "turn" for entry in caught.traceback)


def test_a_run_that_collects_ahead_can_be_closed_in_the_middle(tmp_path: Path) -> None:
    with site(tmp_path, Kind.fleet_ahead, iterations=5, workers=1, step_s=0.5) as here:
        here.collect(tickets(4))
        started = time.monotonic()
    assert time.monotonic() - started < 60
    nothing_is_left_of(tmp_path)
