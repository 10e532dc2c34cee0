"""A defect of the host costs the worker whose words meet it; one that meets every worker's ends the run."""

from __future__ import annotations

from typing import Any

import pytest

from digirl_dist.collect.fleet_collector import FleetCollector
from digirl_dist.errors import CollectionError
from digirl_dist.settings import LimitSettings
from digirl_dist.tasks import Key
from simulate.behaviour import Behaviour
from simulate.collection import Simulation, tickets
from simulate.link import Way

LIMITS = LimitSettings(silence_s=8.0, start_s=8.0, back_off_s=0.5, steady_s=5.0, quarantine_s=40.0)
HANDLERS = ("_hear", "_loaded", "_ended", "_take_home")


def plant(patch: pytest.MonkeyPatch, handler: str, *workers: str, after: bool = False) -> None:
    """Has the handler meet a defect with these workers, before or after it has done its work."""
    real = getattr(FleetCollector, handler)

    def broken(self: Any, first: Any, *more: Any) -> None:
        if after:
            real(self, first, *more)
        if getattr(first, "worker", first) in workers:
            raise KeyError("planted")
        if not after:
            real(self, first, *more)

    patch.setattr(FleetCollector, handler, broken)


@pytest.mark.parametrize("after", [False, True])
@pytest.mark.parametrize("handler", HANDLERS)
def test_a_defect_costs_the_worker_whose_words_meet_it(
    monkeypatch: pytest.MonkeyPatch, handler: str, after: bool
) -> None:
    plant(monkeypatch, handler, "w1", after=after)
    here = Simulation.of({f"w{number}": Behaviour(slots=2) for number in range(3)}, LIMITS)
    result = here.collect(tickets(60))
    assert [one.ticket.key for one in result.trajectories] == [Key(0, index) for index in range(60)]
    assert not here.store.came_twice
    failed = here.events.of("handling_failed")
    assert len(failed) >= 3 and {one["worker"] for one in failed} == {"w1"}
    assert all("planted" in one["reason"] and "Traceback" in one["reason"] for one in failed)
    assert [one["worker"] for one in here.events.of("worker_out_of_service")] == ["w1"]
    assert {one["worker"] for one in here.events.of("worker_lost")} == {"w1"}


@pytest.mark.parametrize("handler", HANDLERS)
def test_a_defect_that_meets_every_worker_ends_the_run_with_its_traceback(
    monkeypatch: pytest.MonkeyPatch, handler: str
) -> None:
    plant(monkeypatch, handler, "w0", "w1")
    here = Simulation.of({"w0": Behaviour(), "w1": Behaviour()}, LIMITS)
    with pytest.raises(CollectionError, match=r"(?s)Traceback.*planted.*please report it"):
        here.collect(tickets(60))
    assert here.world.now < 60.0


def test_a_defect_that_meets_all_who_are_there_ends_the_run_in_time(monkeypatch: pytest.MonkeyPatch) -> None:
    plant(monkeypatch, "_ended", "w0", "w1")
    here = Simulation.of({"w0": Behaviour(), "w1": Behaviour(), "away": Behaviour()}, LIMITS)
    here.machines["away"].link.to_host = Way.STALLED
    with pytest.raises(CollectionError, match=r"(?s)Traceback.*planted"):
        here.collect(tickets(60))
    assert 60.0 < here.world.now < LIMITS.no_worker_s + 2 * LIMITS.quarantine_s
