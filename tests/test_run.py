"""The command as users run it: every way to call it, and every way it may end."""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import sys
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from process_watch import eventually, nothing_is_left_of
from run_files import events, metrics

from digirl_dist.child_process import environment
from digirl_dist.cli.main import main
from digirl_dist.parallel.loopback import free_port
from digirl_dist.settings import configuration
from digirl_dist.settings.places import HERE
from digirl_dist.ssh.connection import Address
from digirl_dist.ssh.localhost_server import LocalhostServer
from digirl_dist.storage import parquet
from digirl_dist.storage.run_folder import RunFolder
from digirl_dist.tasks import Key

pytestmark = [pytest.mark.system, pytest.mark.long]
ROOT = Path(__file__).resolve().parent.parent
RUN = [sys.executable, str(ROOT / "run.py"), "--config-path", "config/multimachine", "--config-name", "host"]
MINE = [
    "emulator=custom",
    "emulator.entry_point=user_classes:Counter",
    "agent=custom",
    "agent.entry_point=user_classes:Coin",
    "rollout_size=8",
    "train_iterations=2",
]
"""The tests' own emulator and agent, found in the working directory ``tests``."""
ONE_WORKER = ["dry_run=true", "dry_run_workers=1"]


def run(
    *words: str, cwd: Path = ROOT / "tests", command: list[str] = RUN, limit_s: float = 120, **env: str
) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [*command, *words], cwd=cwd, env={**os.environ, **env}, capture_output=True, text=True, timeout=limit_s
    )


Say = Callable[..., "subprocess.CompletedProcess[str]"]


@pytest.fixture
def say(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Say:
    """The same command in this process, which has everything imported already."""
    monkeypatch.chdir(ROOT / "tests")

    def run_here(*words: str, **env: str) -> subprocess.CompletedProcess[str]:
        for name, value in env.items():
            monkeypatch.setenv(name, value)
        return subprocess.CompletedProcess(words, main([*RUN[2:], *words]), *capsys.readouterr())

    return run_here


def start(*words: str) -> subprocess.Popen[str]:
    return subprocess.Popen(
        [*RUN, *MINE, *words], cwd=ROOT / "tests", stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    )


def keys(folder: Path) -> Counter[tuple[int, int]]:
    """How often each (iteration, ticket) is in the finished trajectories."""
    paths = sorted((folder / "trajectories").glob("*.parquet"))
    return Counter(trajectory.ticket.key for path in paths for trajectory in parquet.read(path))


PATHS = {"PYTHONPATH": f"{ROOT / 'tests'}:{ROOT}"}
WAYS = {
    "from script": (
        ROOT / "script",
        [sys.executable, "run.py", "--config-path", "config/multimachine", "--config-name", "host"],
    ),
    "as a module": (ROOT, [sys.executable, "-m", "digirl_dist", *RUN[2:]]),
}


@pytest.mark.parametrize("way", WAYS)
def test_the_command_finds_its_configuration_however_it_is_called_and_says_what_to_do(way: str, tmp_path: Path) -> None:
    cwd, command = WAYS[way]
    done = run(*MINE, f"save_path={tmp_path / 'run'}", cwd=cwd, command=command, **PATHS)
    assert done.returncode == 2 and "worker_ips is empty" in done.stderr and "dry_run=true" in done.stderr
    assert not (tmp_path / "run").exists()


@pytest.mark.nightly
def test_the_console_script_works_from_a_wheel_in_an_empty_folder(tmp_path: Path) -> None:
    source, site, empty = tmp_path / "source", tmp_path / "site", tmp_path / "empty"
    shutil.copytree(
        ROOT, source, ignore=shutil.ignore_patterns(".git", ".venv", "runs", "build", "*.egg-info", "tests")
    )
    pip = [sys.executable, "-m", "pip", "--disable-pip-version-check", "-q"]
    subprocess.run([*pip, "wheel", "--no-deps", "--no-build-isolation", "-w", tmp_path, source], check=True)
    (wheel,) = tmp_path.glob("*.whl")
    subprocess.run([*pip, "install", "--no-deps", "--target", site, wheel], check=True)
    shutil.rmtree(source)
    empty.mkdir()
    shutil.copy(ROOT / "tests" / "user_classes.py", empty)
    script = [str(site / "bin" / "digirl-dist"), *RUN[2:]]
    done = run(*MINE, *ONE_WORKER, "save_path=out", cwd=empty, command=script, PYTHONPATH=str(site))
    assert done.returncode == 0, done.stderr
    assert len(metrics(empty / "out")) == 2


def test_the_command_works_from_the_root_and_leaves_a_folder_with_everything_it_promises(tmp_path: Path) -> None:
    done = run(*MINE, *ONE_WORKER, f"save_path={tmp_path}", cwd=ROOT, **PATHS)
    assert done.returncode == 0, done.stderr
    assert [line["iteration"] for line in metrics(tmp_path)] == [0, 1]
    assert set(keys(tmp_path).values()) == {1} and len(keys(tmp_path)) == 16
    nothing_is_left_of(tmp_path)
    present = {path.name for path in tmp_path.iterdir()}
    promised = {"config.yaml", "checkpoints", "trajectories", "metrics.jsonl", "events.jsonl", "tensorboard"}
    assert promised | {"report.html"} <= present and "dry_run" not in present
    assert (tmp_path / "checkpoints" / "latest").resolve().name == "000002"
    checkpoint = {path.name for path in (tmp_path / "checkpoints" / "000002").iterdir()}
    assert checkpoint == {"policy.safetensors", "manifest.json", "metrics.json", "trainer.pt"}
    assert list((tmp_path / "tensorboard").iterdir())
    results = {"iteration", "time", "episodes", "success_rate", "reward_mean", "reward_max", "policy_version"}
    seconds = {"collect_s", "push_s", "update_s", "iteration_s", "overhead_s"}
    others = {"push_bytes", "pull_bytes", "emulator_busy", "episodes_retried", "workers_lost"}
    assert results | seconds | others <= set(metrics(tmp_path)[1])
    assert metrics(tmp_path)[0]["overhead_s"] is None and metrics(tmp_path)[1]["overhead_s"] > 0


def test_a_folder_that_is_in_use_is_refused(say: Say, tmp_path: Path) -> None:
    held = RunFolder(tmp_path, "seed: 0\n")
    done = say(*MINE, "parallel=single", f"save_path={tmp_path}")
    held.close()
    assert done.returncode == 1 and f"in use by process {os.getpid()}" in done.stderr


def test_a_copy_of_a_run_folder_goes_on_and_says_that_it_is_another_run(say: Say, tmp_path: Path) -> None:
    original, copy = tmp_path / "original", tmp_path / "copy"
    words = [*MINE, "parallel=single", "train_iterations=1"]
    assert say(*words, f"save_path={original}").returncode == 0
    shutil.copytree(original, copy)
    done = say(*words, f"save_path={copy}", "train_iterations=2")
    assert done.returncode == 0 and f":{original} and goes on as a run of its own" in done.stdout
    assert len(metrics(copy)) == 2 and len(metrics(original)) == 1
    assert len(events(copy, "run_copied")) == 1 and not events(original, "run_copied")


def test_another_agent_does_not_fit_an_old_run(say: Say, tmp_path: Path) -> None:
    before = configuration.load(HERE, "host", [*MINE, "parallel=single"])
    (tmp_path / "config.yaml").write_text(configuration.to_yaml(before))
    (tmp_path / "checkpoints" / "000001").mkdir(parents=True)
    other = [word for word in MINE if not word.startswith("agent")]
    done = say(*other, "agent=generic", "parallel=single", f"save_path={tmp_path}", "train_iterations=3")
    assert done.returncode == 2 and "agent.name=generic" in done.stderr and "agent.name=custom" in done.stderr


def test_an_interrupted_run_leaves_nothing_running_and_goes_on_later(say: Say, tmp_path: Path) -> None:
    words = [*ONE_WORKER, f"save_path={tmp_path}", "rollout_size=20"]
    process = start(*words, "emulator.kwargs={step_s: 0.2}")
    eventually(lambda: len(events(tmp_path, "episode")) >= 3, 60)
    process.send_signal(signal.SIGINT)
    _, said = process.communicate(timeout=120)
    assert process.returncode == 130 and "the same command resumes" in said
    nothing_is_left_of(tmp_path)
    assert not (tmp_path / "dry_run").exists()
    landed = len(list(tmp_path.glob("trajectories/.landing/000000/[0-9]*.episode")))
    assert landed >= 3
    done = say(*MINE, *words)
    assert done.returncode == 0, done.stderr
    assert set(keys(tmp_path).values()) == {1} and len(keys(tmp_path)) == 40


def test_a_host_killed_in_mid_collection_continues_at_that_iteration(say: Say, tmp_path: Path) -> None:
    words = [*ONE_WORKER, f"save_path={tmp_path}", "rollout_size=12", "train_iterations=3", "limits.orphan_s=8"]
    slow = "emulator.kwargs={step_s: 0.1}"
    process = start(*words, slow)
    eventually(lambda: sum(event["iteration"] == 1 for event in events(tmp_path, "episode")) >= 5, 90)
    process.kill()
    process.communicate()
    done = say(*MINE, *words, slow)
    assert done.returncode == 0, done.stderr
    assert "continuing at iteration 1" in done.stdout
    assert keys(tmp_path) == Counter({Key(iteration, ticket): 1 for iteration in range(3) for ticket in range(12)})
    assert [line["iteration"] for line in metrics(tmp_path)] == [0, 1, 2]
    nothing_is_left_of(tmp_path)


def test_an_agent_that_crashes_says_so(say: Say, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    words = [word.replace("user_classes:Coin", "broken:Agent") for word in MINE]
    (tmp_path / "broken.py").write_text(
        "from user_classes import Coin\n"
        "class Agent(Coin):\n    def act(self, observations, rngs):\n        return [][0]\n"
    )
    monkeypatch.chdir(tmp_path)
    done = say(*words, *ONE_WORKER, f"save_path={tmp_path / 'run'}", "limits.no_worker_s=60")
    assert done.returncode == 1 and "IndexError" in done.stderr, done.stderr
    nothing_is_left_of(tmp_path / "run")


# --- workers that cannot be used ------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def worker(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Address]:
    with LocalhostServer("w1", tmp_path_factory.mktemp("server")) as address:
        yield address


@pytest.fixture
def home(tmp_path: Path) -> Path:
    (tmp_path / "home" / ".ssh").mkdir(parents=True)
    return tmp_path / "home"


@pytest.fixture
def on(say: Say, worker: Address, home: Path, tmp_path: Path) -> Say:
    """A run on the worker, whose address may be told otherwise; it installs nothing, as it must not get that far."""

    def run_on(*words: str, **changed: Any) -> subprocess.CompletedProcess[str]:
        at = replace(worker, **changed)
        there = f"{{host: {at.host}, port: {at.port}, username: {at.user}, key: {at.key}, name: w1}}"
        return say(*MINE, f"worker_ips=[{there}]", f"save_path={tmp_path / 'run'}", *words, HOME=str(home))

    return run_on


@pytest.fixture
def trusted(worker: Address, home: Path) -> None:
    shutil.copy(str(worker.known_hosts), home / ".ssh" / "known_hosts")


def assert_refused(done: subprocess.CompletedProcess[str], *words: str) -> None:
    assert done.returncode == 1, done.stdout
    last = done.stderr.strip().split("error: ")[-1]
    assert "worker w1" in last and "Traceback" not in last
    for word in words:
        assert word in last, last


def test_an_unknown_host_key_is_refused_with_the_command_that_adds_it(on: Say) -> None:
    assert_refused(on(), "unknown host key SHA256:", "ssh-keyscan")


def test_an_unreachable_worker_is_named_in_bounded_time(on: Say) -> None:
    done = on("limits.no_worker_s=5", port=free_port())
    assert done.returncode == 2 and "no worker can be reached (w1: " in done.stderr and "refused" in done.stderr


@pytest.mark.unit
def test_environment_variables_of_the_host_find_the_package() -> None:
    assert str(ROOT) in environment()["PYTHONPATH"].split(os.pathsep)[0]
