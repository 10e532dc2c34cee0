"""The doctor on the host itself, its table and its trial of an emulator, over the embedded SSH server."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator
from dataclasses import replace
from functools import partial
from pathlib import Path

import numpy as np
import pytest
import torch
from user_classes import Counter

from digirl_dist.assembly import setup_doctor
from digirl_dist.child_process import environment
from digirl_dist.doctor.check import Check, as_table, would_start
from digirl_dist.doctor.examine import Target, examine, examine_emulators, examine_host
from digirl_dist.doctor.judgement import MachineRequirements
from digirl_dist.doctor.trial import Trial, some_action, try_there
from digirl_dist.emulator import BoxActions, DeviceActions, DiscreteActions
from digirl_dist.emulator.touch_actions import DeviceAction
from digirl_dist.errors import JobError
from digirl_dist.fleet.roster import WorkerConfig, this_python
from digirl_dist.parallel.compute_device import Visible
from digirl_dist.protocol.messages import SlotLimits
from digirl_dist.settings import (
    DeviceAgentSettings,
    InProcessSettings,
    PhoneSettings,
    Settings,
    SshSettings,
    configuration,
)
from digirl_dist.settings.places import HERE
from digirl_dist.ssh.connect import connect
from digirl_dist.ssh.localhost_server import LocalhostServer
from digirl_dist.storage.status import Status
from digirl_dist.tasks import Task
from digirl_dist.trajectory import Observation
from digirl_dist.user_code.packing import pack

pytestmark = pytest.mark.component

ROOT = Path(__file__).resolve().parents[2]
PLAIN = MachineRequirements("plain", 10, 0.01)


@pytest.fixture
def worker_config(tmp_path: Path) -> Iterator[WorkerConfig]:
    with LocalhostServer("w1", tmp_path / "server") as address:
        yield WorkerConfig(address, slots=1, temp_path=str(tmp_path / "jobs"), run_path="", python=sys.executable)


def a_trial(task: Task, **limits: float) -> Trial:
    return Trial(pack(partial(Counter, 3)), task, 1, SlotLimits(boot_s=60, **limits))


def test_an_emulator_that_fails_when_it_is_tried_keeps_a_run_from_starting(worker_config: WorkerConfig) -> None:
    trial = a_trial(Task("count", params={"at": "step", "suffers": "raise"}))
    found = examine(Target(worker_config, PLAIN, None, this_python(None), trial), Settings())
    assert [check.check for check in found if not check.ok] == ["try"] and not would_start(found)
    assert "the device is on fire" in found[-1].detail and found[-1].remedy


def test_an_emulator_that_hangs_or_works_when_it_is_tried(worker_config: WorkerConfig) -> None:
    with connect(worker_config.address, SshSettings()) as connection:
        with pytest.raises(JobError, match="did not answer its reset in time"):
            hanging = a_trial(Task("count", params={"at": "reset", "suffers": "hang"}), reset_s=0.5)
            try_there(connection, this_python(None), hanging)
        told, follows_seed = try_there(connection, this_python(None), a_trial(Task("count")))
    assert follows_seed
    assert [part.split()[0] for part in told.split(", ")] == ["boot", "reset", "step", "reset"]
    assert "(2 numbers)" in told


class Seedless(Counter):
    def _see(self) -> Observation:
        return Observation(vector=np.random.default_rng().normal(size=2).astype(np.float32))


def test_seeds_that_an_emulator_ignores_are_a_warning(worker_config: WorkerConfig) -> None:
    trial = replace(a_trial(Task("count")), emulator=pack(Seedless))
    found = examine(Target(worker_config, PLAIN, None, this_python(None), trial), Settings())
    (warning,) = [check for check in found if not check.ok]
    assert (warning.check, warning.blocks) == ("seed", False) and would_start(found)
    assert "task count: two resets with seed 0" in warning.detail and "super().reset(seed=seed)" in warning.remedy


@pytest.mark.unit
def test_each_kind_of_emulator_knows_the_action_of_a_trial() -> None:
    assert some_action(DiscreteActions(3)) == 0
    assert some_action(BoxActions((-1.0, 2.0, -4.0), (1.0, 3.0, -2.0))) == [0.0, 2.0, -2.0]
    assert DeviceAction.from_json(some_action(DeviceActions())).type == "tap"


def test_a_package_that_is_not_there_cannot_be_tried(worker_config: WorkerConfig, tmp_path: Path) -> None:
    from digirl_dist.fleet.install import Package, build_wheel

    trial = Trial(b"", Task("count"), 0, SlotLimits())
    target = Target(replace(worker_config, run_path=str(tmp_path / "env")), PLAIN, Package(build_wheel()), [], trial)
    check = next(check for check in examine(target, Settings()) if check.check == "try")
    assert not check.ok and "digirl-dist setup" in check.remedy


def test_a_host_without_room_for_the_run(small_disk: Path, tmp_path: Path) -> None:
    check = next(examine_host(Settings(save_path=str(small_disk / "run"))))
    assert not check.ok and check.blocks and "set save_path to a larger disk" in check.remedy
    assert next(examine_host(Settings(save_path=str(tmp_path / "run")))).ok


def test_a_host_without_torch(tmp_path: Path) -> None:
    (tmp_path / "torch.py").write_text("raise ImportError('libc10.so is damaged')")
    program = (
        "from digirl_dist.doctor.examine import _torch; check = _torch(); print(check.ok, check.detail, check.remedy)"
    )
    for paths, expected in ((f"{tmp_path}:{ROOT}", "False cannot be imported: libc10"), (str(ROOT), "True")):
        shown = subprocess.run(
            [sys.executable, "-c", program], env={**environment(), "PYTHONPATH": paths}, capture_output=True, text=True
        )
        assert shown.stdout.startswith(expected), shown.stderr


@pytest.mark.unit
def test_settings_that_no_run_could_start_with() -> None:
    settings = Settings(emulator=PhoneSettings(), agent=DeviceAgentSettings(), trainer=InProcessSettings())
    checks = list(setup_doctor.doctor(settings, False, Status()))
    failed = [check for check in checks if not check.ok]
    assert [(check.worker, check.check) for check in failed] == [("host", "settings")]
    assert "worker_ips is empty" in failed[0].detail and not would_start(checks)


@pytest.mark.unit
def test_emulators_of_the_host_itself_are_looked_at() -> None:
    found = {
        check.check: check
        for check in examine_emulators(Settings(bsize=4096), MachineRequirements("big", 10**6, 0.0001))
    }
    assert not found["memory"].ok and found["python"].ok and found["memory"].worker == "host"


@pytest.mark.unit
def test_warnings_do_not_keep_a_run_from_starting() -> None:
    warning = Check("w1", "clock", False, "70 s ahead", "set it", blocks=False)
    good = Check("w1", "port", True, "port 22", "never shown")
    assert would_start([good, warning]) and "a run would start (1 to look at)" in as_table([good, warning])
    bad = Check("w2", "login", False, "no key fits", "copy it")
    table = as_table([good, warning, bad])
    assert not would_start([good, warning, bad])
    assert "a run would not start: 1 of 3 checks failed (1 to look at)" in table
    assert "FAIL  login  no key fits" in table and "-> copy it" in table and "never shown" not in table


def test_the_doctor_counts_the_gpus_of_the_training_processes(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr("digirl_dist.parallel.compute_device.visible_devices", lambda mask: Visible(2))
    words = ["parallel=single", f"save_path={tmp_path / 'run'}", "trainer=torchrun", "trainer.nproc_per_node=3"]
    settings = configuration.load(HERE, "host", words)
    (check,) = [each for each in setup_doctor.doctor(settings, False, Status()) if each.check == "settings"]
    assert not check.ok and "3 ranks on this machine, but only 2 CUDA devices" in check.detail


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["algorithm.entry_point=statistics:mean"], "is called with the agent, peers=…"),
        (["agent=custom", "agent.entry_point=os:getcwd"], "is called with the emulator's spec and agent.kwargs"),
        (["task_mode=evaluate"], "holds no checkpoint to measure"),
        (["trainer.device=cuda:7"], "cuda:7"),
        (["task_mode=evaluate", "agent=endpoint", "agent.model=m", "agent.key_variable=NO_SUCH_KEY"], "needs a key"),
        (["algorithm.hindsight.achieved=nowhere:mine"], "module 'nowhere' cannot be imported"),
        (["algorithm.hindsight.achieved=os:getcwd"], "is called with a Trajectory, and cannot be"),
        (["train_algorithm=digirl", "algorithm.digirl.advantage=os:getcwd"], "is called with rewards and values, and"),
        (['task_set="tasks_{split}.txt"', "evaluation.every=2"], "tasks_test.txt cannot be read"),
    ],
)
def test_the_doctor_refuses_what_a_run_would_refuse(
    words: list[str], said: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    Path("tasks_train.txt").write_text("Open the Clock app\n")
    if torch.cuda.device_count() > 7:
        pytest.skip("this machine has eight GPUs")
    settings = configuration.load(HERE, "host", ["parallel=single", f"save_path={tmp_path / 'run'}", *words])
    (check,) = [each for each in setup_doctor.doctor(settings, False, Status()) if each.check == "settings"]
    assert not check.ok and said in check.detail


def test_without_a_save_path_the_doctor_looks_at_the_folder_that_a_run_would_choose(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    Path("auto").write_text("a file of the user's")
    words = ["parallel=single", "emulator=rehearsal", "agent=generic", "bsize=1"]
    before = configuration.load(HERE, "host", words)
    folder = tmp_path / "runs" / "rehearsal-filtered_bc"
    disk, *others = setup_doctor.doctor(replace(before), False, Status())
    assert disk.ok and disk.detail.endswith(f" at {folder}") and would_start([disk, *others])
    setup_doctor.census_job(replace(before), 1)
    assert sorted(each.name for each in tmp_path.iterdir()) == ["auto"]
    Path("runs").write_text("in the way")
    failed = [check for check in setup_doctor.doctor(replace(before), False, Status()) if not check.ok]
    assert [check.check for check in failed] == ["disk save_path", "settings"]
    assert f"{tmp_path / 'runs'}" in failed[0].detail and "cannot be a folder" in failed[1].detail
