"""The command, with its installation, on machines of a real network."""

from __future__ import annotations

import sys
from collections import Counter
from pathlib import Path

import pytest
from network.fleet_site import assert_nothing_left
from network.machines import Machine
from run_files import events

from digirl_dist.cli.main import main
from digirl_dist.storage import parquet
from digirl_dist.tasks import Key

pytestmark = [pytest.mark.system, pytest.mark.long_file(30)]

ROOT = Path(__file__).resolve().parent.parent.parent


def test_a_run_on_two_machines_installs_itself_there_and_leaves_nothing(
    machines: list[Machine], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    home = tmp_path / "home" / ".ssh"
    home.mkdir(parents=True)
    known = [Path(str(machine.address.known_hosts)).read_text() for machine in machines]
    (home / "known_hosts").write_text("".join(known))
    workers = [
        f"{{host: {one.address.host}, name: {one.name}, key: {one.address.key}, temp_path: {one.jobs}}}"
        for one in machines
    ]
    words = [
        *(
            "emulator=custom",
            "emulator.entry_point=user_classes:Counter",
            "agent=custom",
            "agent.entry_point=user_classes:Coin",
        ),
        *("rollout_size=12", "train_iterations=2", "emulator.kwargs={step_s: 0.7}"),  # both machines come to take part
        *("install.reuse_packages=true", f"worker_python={sys.executable}"),
        *(f"worker_ips=[{','.join(workers)}]", f"worker_run_path={tmp_path / 'env'}", f"save_path={tmp_path / 'run'}"),
    ]
    monkeypatch.chdir(ROOT / "tests")
    monkeypatch.setenv("HOME", str(home.parent))
    assert main(["--config-path", "config/multimachine", "--config-name", "host", *words]) == 0
    paths = sorted((tmp_path / "run" / "trajectories").glob("*.parquet"))
    found = [trajectory for path in paths for trajectory in parquet.read(path)]
    assert Counter(one.ticket.key for one in found) == Counter(Key(i, k) for i in range(2) for k in range(12))
    assert {one.worker for one in found} == {"w1", "w2"}
    assert sorted(event["worker"] for event in events(tmp_path / "run", "worker_joined")) == ["w1", "w2"]
    assert not events(tmp_path / "run", "worker_lost")
    assert_nothing_left(machines)
    assert not any(list(machine.jobs.iterdir()) for machine in machines)
