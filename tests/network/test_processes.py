"""Faults of the processes on a worker: each is noticed, named, and costs what it must and no more."""

from __future__ import annotations

import sys
import time
from collections.abc import Callable
from pathlib import Path

import psutil
import pytest
from network.fleet_site import Site, assert_once_each, job_folder, site, tickets
from network.machines import Machine, freeze
from process_watch import eventually

from chaos.processes import frozen, runs
from digirl_dist.storage.run_folder import RunFolder

pytestmark = [pytest.mark.system, pytest.mark.long_file(90)]

Faults = dict[str, tuple[Callable[[Machine], None], str]]
"""By name: what is done to a machine, and words of the reason that must be given."""


def suffer(here: Site, faults: Faults, count: int) -> dict[str, Machine]:
    """Each machine but the last suffers one fault in mid-collection; no ticket may be lost or repeated."""
    struck = dict(zip(faults, here.machines, strict=False))
    come_home = here.all_at_work(count)
    for fault, machine in struck.items():
        faults[fault][0](machine)
    come_home()
    healthy = here.machines[-1].name
    assert not here.seen("worker_lost", healthy) and not here.seen("episode_retried", healthy)
    return struck


def kill_relay(machine: Machine) -> None:
    machine.relays()[0].kill()


def kill_courier(machine: Machine) -> None:
    machine.couriers()[0].kill()


def kill_sshd_for_a_moment(machine: Machine) -> None:
    machine.sshd.kill()
    time.sleep(1.0)
    machine.sshd.start()


def freeze_sessions(machine: Machine) -> None:
    for session in machine.sshd.sessions():
        freeze(session)


CONNECTION: Faults = {
    "a killed sshd": (kill_sshd_for_a_moment, "the connection broke"),
    "a killed relay": (kill_relay, "digirl_dist.worker_program.attach"),
    "a killed courier": (kill_courier, "digirl_dist.worker_program.courier"),
    "a frozen session of sshd": (freeze_sessions, "the connection broke"),
}


def test_what_breaks_the_connection_leaves_the_program_at_work(
    make_machines: Callable[[int], list[Machine]], tmp_path: Path
) -> None:
    machines = make_machines(len(CONNECTION) + 1)
    with site(tmp_path / "run", machines) as here:
        struck = suffer(here, CONNECTION, 90)
        programs = {fault: machine.programs() for fault, machine in struck.items()}
        assert not here.seen("episode_retried")
        for fault, machine in struck.items():
            here.come_back(machine.name)
            assert CONNECTION[fault][1] in here.first_loss(machine.name)[1], fault
            assert machine.programs() == programs[fault] and len(programs[fault]) == 1, fault
        stuck = frozen(struck["a frozen session of sshd"].sshd.sessions())
        assert stuck, "the host cannot end it"
        for session in stuck:
            session.kill()


def kill_program(machine: Machine) -> None:
    machine.programs()[0].kill()


def freeze_program(machine: Machine) -> None:
    freeze(machine.programs()[0])


def kill_emulator(machine: Machine) -> None:
    machine.emulators()[0].kill()


def freeze_emulator(machine: Machine) -> None:
    freeze(machine.emulators()[0])


def has_two_emulators(machine: Machine, after: str) -> None:
    """One for each slot, of which none is frozen: what a slot has let go ends within moments, and a new one boots."""
    eventually(
        lambda: len(running := machine.emulators()) == 2 and not frozen(running), what=f"two emulators after {after}"
    )


PROGRAM: Faults = {
    "a killed program": (kill_program, "the worker program ended"),
    "a frozen program": (freeze_program, "the worker program is silent"),
}
EMULATOR: Faults = {
    "a killed emulator": (kill_emulator, "ended during its"),
    "a frozen emulator": (freeze_emulator, "did not answer its"),
}


def test_a_program_is_started_anew_and_an_emulator_costs_its_episode(
    make_machines: Callable[[int], list[Machine]], tmp_path: Path
) -> None:
    """Each was killed, or frozen. A program that is frozen when the run ends is killed, which the site sees to."""
    machines = make_machines(len(PROGRAM) + len(EMULATOR) + 1)
    with site(tmp_path / "run", machines) as here:
        struck = suffer(here, {**EMULATOR, **PROGRAM}, 100)
        for fault, (_, reason) in EMULATOR.items():
            assert not here.seen("worker_lost", struck[fault].name)
            (retried,) = here.seen("episode_retried", struck[fault].name)
            assert reason in retried["reason"], fault
            has_two_emulators(struck[fault], fault)
        for fault, (_, reason) in PROGRAM.items():
            here.come_back(struck[fault].name)
            assert reason in here.first_loss(struck[fault].name)[1], fault
            assert len(struck[fault].programs()) == 1, fault
            has_two_emulators(struck[fault], fault)
        freeze_program(machines[-1])


def test_a_program_of_another_version_is_replaced(machines: list[Machine], tmp_path: Path) -> None:
    folder = RunFolder(tmp_path / "run", "")
    folder.close()
    old = start_program(machines[0], job_folder(machines[0], folder.run_id), "old")
    with site(tmp_path / "run", machines[:1], package="new") as here:
        assert_once_each(here, here.collecting(tickets(8)).result(70), 8)
        assert "another version" in here.first_loss("w1")[1]
        eventually(lambda: not runs(old.pid), what="the end of the old program")


def start_program(machine: Machine, folder: Path, package: str) -> psutil.Process:
    """What a host leaves behind that started a program and was killed."""
    options = ["--folder", str(folder), "--orphan-s", "60", "--package", package]
    relay = machine.start([sys.executable, "-m", "digirl_dist.worker_program.attach", *options])
    eventually((folder / "control.sock").exists, 30, "the start of the program")
    relay.kill()
    relay.communicate()
    (program,) = machine.programs()
    return program
