"""The benchmarks run, and say what they found in the form that is asked of them."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

pytestmark = pytest.mark.system

ROOT = Path(__file__).resolve().parent.parent


def test_a_figure_ends_with_its_values_and_goals() -> None:
    if shutil.which("sshd", path="/usr/sbin:" + os.environ.get("PATH", "")) is None:
        give_up = pytest.fail if os.environ.get("CI") == "true" else pytest.skip
        give_up("sshd is missing: apt-get install openssh-server")
    small = {"BENCH_WORKERS": "1", "BENCH_SLOTS": "1", "BENCH_ROUNDS": "2"}
    command = [sys.executable, "-m", "benchmarks.overhead"]
    done = subprocess.run(command, cwd=ROOT, env={**os.environ, **small}, capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stderr
    told = json.loads(done.stdout.splitlines()[-1])
    assert set(told) == {"figure", "values", "detail"} and told["figure"] == "overhead"
    assert {name: value["goal"] for name, value in told["values"].items()} == {
        "iteration_s": "<=0.5",
        "command_s": "<=0.02",
    }
    assert all(value["value"] > 0 for value in told["values"].values())


@pytest.mark.component
def test_the_figures_can_be_listed() -> None:
    listed = subprocess.run([ROOT / "script" / "bench"], capture_output=True, text=True, check=True).stdout
    assert "overhead " in listed and "stage" not in listed.split()


@pytest.mark.component
def test_an_unknown_figure_is_refused() -> None:
    done = subprocess.run([ROOT / "script" / "bench", "nix"], capture_output=True, text=True)
    assert done.returncode == 2 and "nix" in done.stderr
