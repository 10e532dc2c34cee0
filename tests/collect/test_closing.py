"""Iterations that close early, tickets that run twice, and collection ahead: each episode still counts exactly once."""

from __future__ import annotations

import time
from pathlib import Path

import pytest
from collector_site import Kind, Site, keys, site, tickets
from process_watch import eventually, nothing_is_left_of

from digirl_dist.collect.around import AheadCollector
from digirl_dist.collect.iteration import Closing
from digirl_dist.errors import CollectionError
from digirl_dist.report.metrics import collection, results
from digirl_dist.storage.trajectory_store import Store
from digirl_dist.tasks import Key, Round, Ticket

pytestmark = [pytest.mark.system, pytest.mark.long]
EARLY = [Kind.inline, Kind.fleet]


@pytest.mark.unit
def test_an_iteration_closes_with_its_share_or_after_its_time() -> None:
    assert not Closing().is_due(9, 10, 1e9) and Closing().is_due(10, 10, 0)
    assert Closing(share=0.07).is_due(7, 100, 0) and not Closing(share=0.07).is_due(6, 100, 0)
    assert Closing(after_s=5).is_due(1, 10, 5) and not Closing(after_s=5).is_due(1, 10, 4.9)
    assert not Closing(after_s=5).is_due(0, 10, 50), "an update needs something to learn from"


def uneven(count: int, iteration: int = 0) -> list[Ticket]:
    """The first of them takes seconds, the others next to nothing."""
    return [*tickets(1, iteration, at="step", suffers="dawdle"), *tickets(count, iteration)[1:]]


def rounds(here: Site, count: int, first: int = 0, last: int = 3) -> list[list[tuple[int, int]]]:
    """Iterations as the loop makes them; the tickets whose episodes each result has."""
    collected = []
    for number in range(first, last + 1):
        here.checkpoint = here.save(number)
        result = here.collect(uneven(count, number))
        here.store.append(result)
        collected.append(keys(result))
    return collected


@pytest.mark.parametrize("kind", EARLY)
def test_what_is_under_way_at_the_quorum_counts_in_the_next_iteration(tmp_path: Path, kind: Kind) -> None:
    with site(tmp_path, kind, workers=1, closing=Closing(share=0.8), speculate=False) as here:
        collected = rounds(here, 10)
        left_out = [here.store.left_out(number) for number in range(4)]
    landed = [key for result in collected for key in result]
    carried_on = [ticket.key for ticket in left_out[3][0]]
    cancelled = [ticket.key for _, untried in left_out for ticket in untried]
    assert sorted(landed + carried_on + cancelled) == sorted(Key(number, k) for number in range(4) for k in range(10))
    assert any(key[0] == 0 for key in collected[1]), "nothing was carried over"
    versions = {t.ticket.key: t.ticket.policy_version for number in range(4) for t in here.store.read(number)}
    assert all(version <= key[0] + 1 for key, version in versions.items())


@pytest.mark.parametrize("kind", EARLY)
def test_a_deadline_cancels_what_nobody_has_begun(tmp_path: Path, kind: Kind) -> None:
    with site(tmp_path, kind, workers=1, closing=Closing(after_s=2.0), step_s=0.3) as here:
        started = time.monotonic()
        result = here.collect(tickets(200))
        assert time.monotonic() - started < 60
        assert result.cancelled > 100 and result.carried <= 20  # what runs, and what lies ready
        assert len(result.trajectories) + result.carried + result.cancelled == 200


@pytest.mark.parametrize("kind", EARLY)
def test_what_was_carried_over_is_run_again_when_the_host_is_gone(tmp_path: Path, kind: Kind) -> None:
    with site(tmp_path, kind, workers=1, closing=Closing(share=0.5), speculate=False) as here:
        first = here.collect(uneven(6))
        carried, _ = here.store.left_out(0)
        assert carried and not (set(keys(first)) & {ticket.key for ticket in carried})
    with site(tmp_path, kind, workers=1) as here:  # killed before it was stored
        again = here.collect(uneven(6))
        assert keys(again) == keys(first) and here.count("episode") == 0
        here.store.append(again)
        here.checkpoint = here.save(1)
        here.store.append(here.collect(tickets(2, iteration=1)))
        expected = [*sorted(ticket.key for ticket in carried), Key(1, 0), Key(1, 1)]
        assert [t.ticket.key for t in Store(here.store.root).read(1)] == expected


def test_metrics_compare_the_length_of_what_came_late(tmp_path: Path) -> None:
    with site(tmp_path, Kind.inline, closing=Closing(share=0.8)) as here:
        here.store.append(here.collect(uneven(6)))
        carried = len(here.store.left_out(0)[0])
        here.checkpoint = here.save(1)
        result = here.collect(tickets(30, iteration=1, at="step", suffers="pause"))
    figures = {**results(1, result.trajectories), **collection(result)}
    assert figures["carried_in"] == sum(key[0] == 0 for key in keys(result)) > 0
    assert figures["carried_in_steps_mean"] == figures["in_time_steps_mean"] == 3
    assert figures["carried_in_s_mean"] > 1 > figures["in_time_s_mean"] > 0
    assert figures["staleness_max"] == 1
    assert figures["carried_over"] + figures["cancelled"] == 30 + carried - figures["episodes"]


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
        ahead = AheadCollector(here.collector, lambda number, version: broken, ahead=1, last=1)
        assert len(ahead.collect(here.checkpoint, tickets(2)).trajectories) == 2
        with pytest.raises(CollectionError, match="the device is on fire") as caught:
            ahead.collect(here.save(1), broken)
        ahead.close()
    assert any(entry.name == "run" for entry in caught.traceback)


def test_a_run_that_collects_ahead_can_be_closed_in_the_middle(tmp_path: Path) -> None:
    with site(tmp_path, Kind.fleet_ahead, iterations=5, workers=1, step_s=0.5) as here:
        here.collect(tickets(4))
        started = time.monotonic()
    assert time.monotonic() - started < 60
    nothing_is_left_of(tmp_path)
