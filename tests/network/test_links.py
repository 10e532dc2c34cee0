"""Faults of the network between host and workers."""

from __future__ import annotations

import time
from collections.abc import Callable
from pathlib import Path

import pytest
from network.machines import Machine, freeze
from network.sites import USUAL, assert_once_each, site, tickets

NOTICED_S = 15.0


def test_a_link_that_is_cut_for_4_s_costs_nothing(machines: list[Machine], tmp_path: Path) -> None:
    with site(tmp_path / "run", machines, limits=USUAL) as here:
        collecting = here.collecting(tickets(90))
        here.wait_for("episode", 2, "w1")
        before = machines[0].programs(), machines[0].emulators()
        machines[0].unplug()
        time.sleep(4.0)
        machines[0].plug_in()
        harvest = collecting.result(60)
        assert_once_each(here, harvest, 90)
        assert not here.seen("worker_lost") and not here.seen("episode_retried")
        assert before == (machines[0].programs(), machines[0].emulators()), "something was restarted needlessly"
        assert {outcome.worker for outcome in harvest.outcomes if outcome.episodes > 10} == {"w1", "w2"}


def drop_both_ways(machine: Machine) -> None:
    machine.drop_what_comes()
    machine.drop_what_goes()


def freeze_session(machine: Machine) -> None:
    for session in machine.sessions():
        freeze(session)


def freeze_program(machine: Machine) -> None:
    freeze(machine.programs()[0])


SILENCES: list[Callable[[Machine], None]] = [
    Machine.unplug,
    drop_both_ways,
    Machine.drop_what_comes,
    Machine.drop_what_goes,
    freeze_session,
    freeze_program,
]


def test_every_way_to_fall_silent_is_noticed_in_15_s(
    make_machines: Callable[[int], list[Machine]], tmp_path: Path
) -> None:
    machines = make_machines(len(SILENCES) + 1)
    with site(tmp_path / "run", machines, limits=USUAL) as here:
        collecting = here.collecting(tickets(60))
        for machine in machines:
            here.wait_for("episode", 1, machine.name, limit_s=60)
        struck = time.monotonic()
        for strike, machine in zip(SILENCES, machines, strict=False):
            strike(machine)
        harvest = collecting.result(60)
        assert_once_each(here, harvest, 60)
        for strike, machine in zip(SILENCES, machines, strict=False):
            losses = [at - struck for at, kind, what in here.events if kind == "worker_lost" and what["worker"] == machine.name]
            assert losses and losses[0] <= NOTICED_S, f"{strike.__name__}: {losses}"
        for machine in machines:
            for process in machine.sessions():
                process.kill()


@pytest.mark.parametrize("strike", [Machine.unplug, drop_both_ways, Machine.drop_what_comes, Machine.drop_what_goes])
def test_a_link_that_stays_dead_costs_retries_only(
    machines: list[Machine], tmp_path: Path, strike: Callable[[Machine], None]
) -> None:
    with site(tmp_path / "run", machines) as here:
        collecting = here.collecting(tickets(24))
        here.wait_for("episode", 2, "w1")
        strike(machines[0])
        harvest = collecting.result(40)
        assert_once_each(here, harvest, 24)
        (lost, *_) = here.seen("worker_lost", "w1")
        assert not lost["fatal"] and lost["released"] > 0
        assert not here.seen("worker_lost", "w2")
