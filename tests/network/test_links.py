"""Faults of the network between host and workers."""

from __future__ import annotations

import re
import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest
from network.fleet_site import USUAL, site
from network.machines import Machine, freeze

pytestmark = [pytest.mark.system, pytest.mark.nightly, pytest.mark.long_file(110)]
NOTICED_S = 15.0


def test_a_link_that_is_cut_for_4_s_costs_nothing(machines: list[Machine], tmp_path: Path) -> None:
    with site(tmp_path / "run", machines, limits=USUAL) as here:
        come_home = here.all_at_work(70)
        before = machines[0].programs(), machines[0].emulators()
        machines[0].unplug()
        time.sleep(4.0)
        machines[0].plug_in()
        come_home()
        assert not here.seen("worker_lost") and not here.seen("episode_retried")
        assert before == (machines[0].programs(), machines[0].emulators()), "something was restarted needlessly"


def freeze_sessions(machine: Machine) -> None:
    for session in machine.sshd.sessions():
        freeze(session)


def freeze_program(machine: Machine) -> None:
    freeze(machine.programs()[0])


_EITHER = "the connection broke|the worker program is silent"
"""A connection that carries nothing is noticed by SSH's own keepalives, or by missing heartbeats: who is first."""

SILENCES: dict[str, tuple[Callable[[Machine], None], str]] = {
    "a link that is cut": (Machine.unplug, _EITHER),
    "packets to the worker dropped": (Machine.drop_what_comes, _EITHER),
    "packets from the worker dropped": (Machine.drop_what_goes, _EITHER),
    "a frozen session of sshd": (freeze_sessions, _EITHER),
    "a frozen program": (freeze_program, "the worker program is silent"),
}


def test_every_way_to_fall_silent_is_noticed_in_15_s_and_costs_retries_only(
    make_machines: Callable[[int], list[Machine]], tmp_path: Path
) -> None:
    machines = make_machines(len(SILENCES) + 1)
    by_name = dict(zip(SILENCES, machines, strict=False))
    limits = replace(USUAL[1], stop_s=20, back_off_max_s=2)  # it ends the frozen program
    with site(tmp_path / "run", machines, limits=(USUAL[0], limits)) as here:
        come_home = here.all_at_work(120)  # more than they finish before the last of them is struck
        struck = {}
        for fault, machine in by_name.items():
            if fault == "a frozen program":
                here.wait_for_heartbeat(machine.name)
            SILENCES[fault][0](machine)
            struck[fault] = time.monotonic()
        come_home()
        noticed = {}
        for fault, machine in by_name.items():
            at, reason = here.first_loss(machine.name)
            noticed[fault] = round(at - struck[fault], 2)
            assert re.search(SILENCES[fault][1], reason), f"{fault}: {reason}"
        assert max(noticed.values()) <= NOTICED_S, noticed
        assert not here.seen("worker_lost", machines[-1].name)
        for lost in (here.seen("worker_lost", name)[0] for name in ("w1", "w2")):
            assert not lost["fatal"] and lost["released"] > 0
        machines[0].plug_in()
        here.come_back("w1")
        for machine in machines:  # the host can do nothing about these
            for session in machine.sshd.sessions()[: -1 if machine is machines[0] else None]:
                session.kill()
