"""What a user types wrongly ends in one line, status 2 and nothing written, before torch is imported."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from digirl_dist.child_process import environment

pytestmark = pytest.mark.component

PROGRAM = (
    "import sys, time; from digirl_dist.cli.main import main\n"
    "status = main(sys.argv[1:])\n"
    "print(status, 'torch' in sys.modules, time.process_time() < 2)"
)
"""Twice the promised second, since a busy machine is slower at everything."""


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["run", "dry_run=true", "rollout_size=-4"], "rollout_size=-4 is out of range"),
        (["run", "worker_ips=[no-such-machine.invalid]"], "the host name no-such-machine.invalid is unknown"),
        (["run", "worker_ips=['127.0.0.1:1']"], "127.0.0.1:1 cannot be reached"),
        (["run", "worker_ips=['[::1]:x']"], "is no port"),
        (["eval", "dry_run=true"], "holds no checkpoint to measure"),
        (["eval", "runs/mistyped"], "runs/mistyped is no run folder"),
        (["demo", "task_set=unheard-of"], "no task set 'unheard-of'"),
        (["demo", "save_path=/proc/mine"], "save_path=/proc/mine cannot be written"),
        (["why", "runs/mistyped"], "is runs/mistyped the save_path of a run?"),
        (["report", "runs/mistyped"], "is no run folder"),
    ],
)
def test_a_mistake_is_told_in_one_line_and_nothing_is_written(words: list[str], said: str, tmp_path: Path) -> None:
    command = [sys.executable, "-c", PROGRAM, *words]
    done = subprocess.run(command, cwd=tmp_path, env=environment(), capture_output=True, text=True, timeout=120)
    assert said in done.stderr and done.stderr.startswith("error: ") and done.stderr.count("\n") == 1, done.stderr
    assert done.stdout.split() == ["2", "False", "True"]
    assert not list(tmp_path.iterdir())
