"""Whole iterations on a virtual clock with the worker program's own core at the other end of the link."""

from __future__ import annotations

from typing import Any

import pytest
from simulation import fleet
from simulation.fleet import Behaviour, Simulation, tickets
from simulation.program import SimulatedProgram

from digirl_dist.settings import LimitSettings
from digirl_dist.tasks import Key

LIMITS = LimitSettings(silence_s=8.0, start_s=8.0, back_off_s=0.5, steady_s=5.0, boot_s=5.0, stuck_s=30.0)


@pytest.fixture(autouse=True)
def _real_cores(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(fleet, "Program", SimulatedProgram)


def collect(here: Simulation, count: int) -> Any:
    result = here.collect(tickets(count))
    assert [one.ticket.key for one in result.trajectories] == [Key(0, index) for index in range(count)]
    assert here.store.refused == 0, "an episode came to the store twice"
    return result


def once(index: int) -> Any:
    """True for the first ticket of that index that is asked about."""
    seen: list[int] = []

    def is_it(ticket: Any) -> bool:
        first = ticket.index == index and not seen
        seen.extend([index] if first else [])
        return first

    return is_it


def test_an_iteration_without_trouble_retries_nothing() -> None:
    here = Simulation.of({f"w{number}": Behaviour() for number in range(3)}, LIMITS)
    collect(here, 60)
    for kind in ("episode_retried", "claims_refused", "worker_lost", "episode_dropped"):
        assert not here.events.of(kind)


def test_an_iteration_survives_a_program_that_dies_a_link_that_breaks_and_one_that_is_half_open() -> None:
    here = Simulation.of({f"w{number}": Behaviour() for number in range(6)}, LIMITS)
    worker = here.fleet.workers

    def link(name: str, to_program: bool, to_host: bool) -> None:
        worker[name].to_program, worker[name].to_host = to_program, to_host

    here.world.later(1.5, worker["w0"].program.kill)
    here.world.later(1.6, lambda: link("w1", False, False))
    here.world.later(12.0, lambda: link("w1", True, True))
    here.world.later(1.7, lambda: link("w2", False, True))
    here.world.later(30.0, lambda: link("w2", True, True))
    collect(here, 240)
    assert {one["worker"] for one in here.events.of("worker_lost")} == {"w0", "w1", "w2"}


@pytest.mark.parametrize("how", ["mishears", "forgets"])
def test_a_ticket_that_slots_lose_is_missing_from_heartbeats_and_run_again(how: str) -> None:
    here = Simulation.of({"w0": Behaviour(**{how: once(3)})}, LIMITS)
    collect(here, 8)
    (again,) = here.events.of("episode_retried")
    assert again["ticket"] == 3 and "without a word" in again["reason"]


def test_an_iteration_survives_a_program_that_is_killed_at_any_moment() -> None:
    for moment in range(40):
        here = Simulation.of({"w0": Behaviour(), "w1": Behaviour()}, LIMITS)
        here.world.later(0.02 + 0.1 * moment, here.fleet.workers["w0"].program.kill)
        collect(here, 24)
