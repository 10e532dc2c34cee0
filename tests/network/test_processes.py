"""Faults of the processes on a worker: each is noticed, named, and costs what it must and no more."""

from __future__ import annotations

import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import psutil
import pytest
from network.machines import Machine, freeze
from network.sites import Site, assert_once_each, site, tickets
from watching import eventually


def strike(here: Site, fault: Callable[[Machine], Any], count: int = 40) -> None:
    """Let the first worker suffer ``fault`` in mid-collection; no ticket may be lost or repeated."""
    collecting = here.collecting(tickets(count))
    here.wait_for("episode", 2, "w1")
    fault(here.machines[0])
    assert_once_each(here, collecting.result(50), count)
    assert not here.seen("worker_lost", "w2")


def comes_back(here: Site) -> bool:
    """True if the first worker joins again; the next iteration is whole as well."""
    harvest = here.collecting(tickets(40, iteration=1)).result(50)
    assert_once_each(here, harvest, 40, iteration=1)
    if len(here.seen("worker_joined", "w1")) < 2:  # its back-off outlasted that iteration
        time.sleep(3.0)
        here.collecting(tickets(8, iteration=2)).result(50)
    return len(here.seen("worker_joined", "w1")) == 2


def kill_relay(machine: Machine) -> None:
    machine.relays()[0].kill()


def kill_courier(machine: Machine) -> None:
    machine.couriers()[0].kill()


def kill_sshd_for_a_moment(machine: Machine) -> None:
    machine.kill_sshd()
    time.sleep(1.0)
    machine.start_sshd()


def freeze_session(machine: Machine) -> None:
    for session in machine.sessions():
        freeze(session)


CONNECTION = {
    "a killed relay": (kill_relay, "digirl_dist.worker.attach"),
    "a killed courier": (kill_courier, "digirl_dist.worker.courier"),
    "a killed sshd": (kill_sshd_for_a_moment, "the connection broke"),
    "a frozen session of sshd": (freeze_session, "the connection broke"),
}


@pytest.mark.parametrize("fault", CONNECTION)
def test_what_breaks_the_connection_leaves_the_program_at_work(
    machines: list[Machine], tmp_path: Path, fault: str
) -> None:
    do, reason = CONNECTION[fault]
    with site(tmp_path / "run", machines) as here:
        collecting = here.collecting(tickets(40))
        here.wait_for("episode", 2, "w1")
        program, emulators = machines[0].programs(), machines[0].emulators()
        do(machines[0])
        assert_once_each(here, collecting.result(50), 40)
        assert reason in here.seen("worker_lost", "w1")[0]["reason"]
        assert not here.seen("episode_retried") and not here.seen("worker_lost", "w2")
        assert comes_back(here)
        assert (program, emulators) == (machines[0].programs(), machines[0].emulators())
        for session in machines[0].sessions():
            session.resume()


def test_a_killed_program_is_started_anew(machines: list[Machine], tmp_path: Path) -> None:
    with site(tmp_path / "run", machines) as here:
        strike(here, lambda machine: machine.programs()[0].kill())
        assert "the worker program ended" in here.seen("worker_lost", "w1")[0]["reason"]
        assert comes_back(here)


def test_a_frozen_program_is_replaced(machines: list[Machine], tmp_path: Path) -> None:
    with site(tmp_path / "run", machines) as here:
        frozen = []

        def freeze_program(machine: Machine) -> None:
            frozen.extend(machine.programs())
            freeze(frozen[0])

        strike(here, freeze_program)
        assert "the worker program is silent" in here.seen("worker_lost", "w1")[0]["reason"]
        eventually(lambda: not frozen[0].is_running(), 30, "the end of the frozen program")
        assert comes_back(here)


def test_a_killed_emulator_costs_its_episode(machines: list[Machine], tmp_path: Path) -> None:
    with site(tmp_path / "run", machines) as here:
        strike(here, lambda machine: machine.emulators()[0].kill())
        (retried,) = here.seen("episode_retried")
        assert retried["worker"] == "w1" and "ended during its" in retried["reason"]
        assert not here.seen("worker_lost")


def test_a_frozen_emulator_costs_its_episode(machines: list[Machine], tmp_path: Path) -> None:
    with site(tmp_path / "run", machines) as here:
        frozen = []

        def freeze_emulator(machine: Machine) -> None:
            frozen.append(machine.emulators()[0])
            freeze(frozen[0])

        strike(here, freeze_emulator)
        (retried,) = here.seen("episode_retried")
        assert retried["worker"] == "w1" and "did not answer its" in retried["reason"]
        assert not frozen[0].is_running() and not here.seen("worker_lost")


def test_a_program_of_another_version_is_replaced(machines: list[Machine], tmp_path: Path) -> None:
    with site(tmp_path / "run", machines, package="new") as here:
        pass  # only to know its folders
    old = [start_program(machine, here.job_folder(machine), "old") for machine in machines]
    with site(tmp_path / "run", machines, package="new") as here:
        assert_once_each(here, here.collecting(tickets(8)).result(40), 8)
        for worker in ("w1", "w2"):
            assert "another version" in here.seen("worker_lost", worker)[0]["reason"]
        assert not any(program.is_running() for program in old)


def start_program(machine: Machine, folder: str, package: str) -> psutil.Process:
    """What a host leaves behind that started a program and was killed."""
    options = ["--folder", folder, "--orphan-s", "60", "--package", package]
    relay = machine.start([sys.executable, "-m", "digirl_dist.worker.attach", *options])
    eventually(machine.programs, 20, "the start of the program")
    eventually(lambda: (Path(folder) / "control.sock").exists(), 20, "its socket")
    relay.kill()
    relay.communicate()
    return machine.programs()[0]
