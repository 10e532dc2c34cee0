"""Every benchmark still runs, in miniature, and ends with its figures in the form that is asked of them, or in time."""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
import sys
from functools import partial
from importlib import import_module
from pathlib import Path

import pytest

pytestmark = pytest.mark.component
ROOT = Path(__file__).resolve().parent.parent

FIGURES = {
    "collect": {"vs_digirl", "vs_distrl", "vs_light_no_faults"},
    "fleet": {"slots", "host_cores", "host_rss_mb"},
    "overhead": {"iteration_s", "command_s"},
    "pull": {"vs_scp", "first_episode_s"},
    "push": {"vs_scp_parallel", "unchanged_s", "unchanged_bytes", "changed_5pct_bytes_ratio"},
    "relay": {"vs_one_worker"},
    "scaling": {"efficiency"},
    "worker": {"phone_ms_per_step", "miniwob_ms_per_step"},
}
LIMITED = {"limited_vs_scp_serial", "delta_bytes_ratio"}
"""Of ``push``, where links can be made narrow."""


@pytest.fixture(scope="module")
def sshd() -> None:
    if shutil.which("sshd", path="/usr/sbin:" + os.environ.get("PATH", "")) is None:
        give_up = pytest.fail if os.environ.get("CI") == "true" else pytest.skip
        give_up("sshd is missing: apt-get install openssh-server")


def run(name: str, **variables: str) -> subprocess.CompletedProcess[str]:
    environment = {**os.environ, "BENCH_MINIATURE": "1", **variables}
    command = [sys.executable, "-m", f"benchmarks.{name}"]
    return subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, text=True, timeout=290)


@pytest.fixture
def told(
    name: str, capfd: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, request: pytest.FixtureRequest
) -> tuple[str, str]:
    """Returns what a benchmark in miniature prints to stdout and stderr."""
    monkeypatch.setattr(sys, "argv", [f"{name}.py"])
    monkeypatch.setattr("benchmarks.measure.MINIATURE", True)
    monkeypatch.setenv("HOME", os.environ["HOME"])  # inference gives itself another one
    monkeypatch.delitem(sys.modules, f"benchmarks.{name}", raising=False)  # its sizes are chosen as it is imported
    request.addfinalizer(partial(sys.modules.pop, f"benchmarks.{name}", None))
    import_module(f"benchmarks.{name}").main()
    return capfd.readouterr()


def wanted(name: str) -> set[str]:
    """The names of a benchmark's figures on this machine."""
    if name == "push" and os.getuid() == 0 and shutil.which("tc"):
        return FIGURES[name] | LIMITED
    return FIGURES[name]


@pytest.mark.system
@pytest.mark.nightly
@pytest.mark.long(20)
@pytest.mark.timeout(300)
@pytest.mark.usefixtures("sshd")
@pytest.mark.parametrize("name", FIGURES)
def test_a_benchmark_ends_with_its_values_and_goals_and_says_what_it_waits_for(
    name: str, told: tuple[str, str]
) -> None:
    figures = json.loads(told[0].splitlines()[-1])
    assert set(figures) == {"figure", "values", "detail"} and figures["figure"] == name
    assert set(figures["values"]) == wanted(name)
    for value in figures["values"].values():
        assert isinstance(value["value"], int | float) and re.fullmatch(r"[<>]=[\d.]+", value["goal"])
    assert f"s  {name} waits for " in told[1]


@pytest.mark.system
@pytest.mark.usefixtures("sshd")
def test_a_benchmark_that_takes_too_long_says_what_it_was_waiting_for() -> None:
    done = run("overhead", BENCH_DEADLINE_S="0.1")  # a worker program alone takes longer to start
    assert done.returncode == 1 and not done.stdout
    last = done.stderr.splitlines()[-1]
    assert re.search(r"overhead has taken longer than its 0.1 s; it was waiting for \S+", last)
    assert "Traceback" not in done.stderr


def test_the_figures_can_be_listed_and_each_has_its_miniature() -> None:
    listed = subprocess.run([ROOT / "script" / "bench"], capture_output=True, text=True, check=True).stdout
    assert [line.split()[0] for line in listed.splitlines()] == sorted(FIGURES)


@pytest.mark.parametrize("name", ["nix", "stage"])
def test_an_unknown_figure_is_refused(name: str) -> None:
    done = subprocess.run([ROOT / "script" / "bench", name], capture_output=True, text=True)
    assert done.returncode == 2 and name in done.stderr
