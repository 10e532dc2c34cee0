"""``digirl-dist setup`` on a bare machine with a fresh user, by the command itself."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from importlib.util import find_spec
from pathlib import Path

import pytest
import yaml
from network.bare_machine import USER, BareMachine
from network.offline_wheels import collect_wheels
from network.package_archive import close_market, open_market

from digirl_dist.cli.main import main
from digirl_dist.emulator.chromium import BROWSERS
from digirl_dist.fleet.install import installed_python
from digirl_dist.storage import parquet

pytestmark = [pytest.mark.system, pytest.mark.long_file(90)]
ROOT = Path(__file__).resolve().parent.parent.parent
WORKER_PYTHON = "/usr/bin/python3"
FOREIGN = {
    "minigrid": ("minigrid", "minigrid:MiniGrid-Empty-5x5-v0"),
    "mujoco": ("gymnasium[mujoco]", "InvertedPendulum-v5"),
    "Box2D": ("gymnasium[box2d]", "LunarLander-v3"),
}
"""By the module: its package, and an environment in it."""


def command(folder: Path, *words: str, limit_s: float = 150) -> subprocess.CompletedProcess[str]:
    """On the host, whose home and configuration are in ``folder``."""
    here = [sys.executable, str(ROOT / "run.py")]
    environment = {**os.environ, "HOME": str(folder), "PYTHONPATH": str(ROOT)}
    return subprocess.run([*here, *words], cwd=folder, env=environment, capture_output=True, text=True, timeout=limit_s)


@pytest.fixture
def host(bare: BareMachine, tmp_path: Path) -> Path:
    """A host's home: the machine's host key is known, and the one YAML file names it."""
    (tmp_path / ".ssh").mkdir()
    (tmp_path / ".ssh" / "known_hosts").write_text(Path(str(bare.address.known_hosts)).read_text())
    configure(bare, tmp_path)
    return tmp_path


Say = Callable[..., "subprocess.CompletedProcess[str]"]


@pytest.fixture
def say(host: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Say:
    """The same command in this process, which has everything imported already."""
    monkeypatch.setenv("HOME", str(host))
    monkeypatch.chdir(host)

    def run(*words: str) -> subprocess.CompletedProcess[str]:
        status = main(words)
        return subprocess.CompletedProcess(words, status, *capsys.readouterr())

    return run


def configure(bare: BareMachine, folder: Path, **more: object) -> None:
    """Edit one file."""
    worker = {"host": bare.address.host, "name": "w1", "username": USER, "key": bare.address.key}
    text = (ROOT / "config" / "multimachine" / "host.yaml").read_text()
    values = yaml.safe_load(text) | {"worker_ips": [worker], "worker_python": WORKER_PYTHON} | more
    path = folder / "config" / "multimachine"
    if not path.exists():
        subprocess.run(["cp", "-r", ROOT / "config", folder / "config"], check=True)
    (path / "host.yaml").write_text(yaml.safe_dump(values, sort_keys=False))


@pytest.fixture(scope="module")
def wheels() -> Iterator[Path]:
    """A folder that the worker's user can read, which none of pytest's stays once another pytest begins."""
    asked = [WORKER_PYTHON, "-c", "import sys; print(*sys.version_info[:2])"]
    there = subprocess.run(asked, capture_output=True, text=True).stdout.split()
    if there != [str(each) for each in sys.version_info[:2]]:
        (pytest.fail if os.environ.get("CI") == "true" else pytest.skip)("the system has no Python of this version")
    with tempfile.TemporaryDirectory(prefix="digirl-dist-wheels-") as base:
        os.chmod(base, 0o755)
        further = [package for module, (package, _) in FOREIGN.items() if find_spec(module)]
        collect_wheels(Path(base), {"miniwob"}, further)
        yield Path(base)


@pytest.mark.nightly
@pytest.mark.timeout(400)
def test_setup_then_doctor_then_a_miniwob_run_with_one_edited_file(
    bare: BareMachine, host: Path, say: Say, wheels: Path
) -> None:
    """The two that change something are processes of their own, as for a user; the others only look."""
    offline = {"pip_args": ["--no-index", f"--find-links={wheels}"]}
    emulator = {"defaults": ["default", {"override emulator": "miniwob"}, "_self_"]}
    configure(bare, host, install=offline, bsize=1, rollout_size=2, train_iterations=1, **emulator)
    planned = say("setup", "--dry-run")
    assert planned.returncode == 0 and "would  digirl_dist" in planned.stdout, planned.stderr
    assert "ok     Chromium" in planned.stdout
    assert bare.as_user("ls -A .cache 2>/dev/null || true") == "", "a dry run changes nothing"
    looked = {check["check"]: check for check in json.loads(say("doctor", "--try", "--json").stdout)}
    assert "not installed in" in looked["package"]["detail"] and "`digirl-dist setup`" in looked["package"]["remedy"]
    assert not looked["try"]["ok"] and "`digirl-dist setup`" in looked["try"]["remedy"]
    done = command(host, "setup", limit_s=300)
    assert done.returncode == 0 and "all workers are ready" in done.stdout, done.stdout + done.stderr
    before = changes(bare)
    times: list[float] = []
    while not times or (min(times) >= 10 and len(times) < 3):  # a machine with other work has another try
        started = time.monotonic()
        again = say("setup")
        times.append(time.monotonic() - started)
        assert "0 steps done, 3 were done before" in again.stdout
    assert min(times) < 10 and changes(bare) == before
    examined = say("doctor", "--try", "--json")
    checks = {(check["worker"], check["check"]): check for check in json.loads(examined.stdout)}
    assert examined.returncode == 0, examined.stdout
    assert all(check["ok"] for check in checks.values())
    assert "boot" in checks["w1", "try"]["detail"] and "PNG" in checks["w1", "try"]["detail"]
    assert {("w1", name) for name in ("package", "torch", "chromium")} <= set(checks)
    other = say("doctor", "--json", "install.pip_args=[--no-index,--no-cache-dir]")
    [package] = [check for check in json.loads(other.stdout) if check["check"] == "package"]
    assert other.returncode == 0 and "with other settings" in package["detail"], "a run would install it by itself"
    ran = command(host, "--config-path", "config/multimachine", "--config-name", "host")
    assert ran.returncode == 0, ran.stderr
    collected = parquet.read(next(host.glob("runs/*/trajectories/000000.parquet")))
    assert [trajectory.worker for trajectory in collected] == ["w1"] * 2


@pytest.mark.nightly
@pytest.mark.timeout(400)
@pytest.mark.parametrize("module", FOREIGN)
def test_an_environment_of_somebody_elses_package_runs_where_only_sshd_was(
    module: str, bare: BareMachine, host: Path, wheels: Path
) -> None:
    package, environment = FOREIGN[module]
    if find_spec(module) is None:
        pytest.skip(f"{module} is large, and no other test needs it")
    offline = {"pip_args": ["--no-index", f"--find-links={wheels}"]}
    emulator = {"defaults": ["default", {"override emulator": "gymnasium"}, "_self_"]}
    emulator |= {"emulator": {"id": environment, "packages": [package]}}
    configure(bare, host, install=offline, bsize=1, rollout_size=2, max_steps=3, train_iterations=1, **emulator)
    there = f"{installed_python('~/.cache/digirl_dist/env')} -c 'import {module}; print({module}.__file__)'"
    assert bare.as_user(f"{there} || true") == "", "it is not there before"
    ran = command(host, "--config-path", "config/multimachine", "--config-name", "host", limit_s=300)
    assert ran.returncode == 0, ran.stdout + ran.stderr
    assert bare.as_user(there).startswith(f"/home/{USER}/")
    collected = parquet.read(next(host.glob("runs/*/trajectories/000000.parquet")))
    assert [trajectory.worker for trajectory in collected] == ["w1"] * 2


def changes(bare: BareMachine) -> str:
    """Time and name of every file of the user's, but for those that Python writes when it runs."""
    return bare.as_user("find ~ -type f -not -name '*.pyc' -printf '%T@ %p\\n' | sort")


def test_what_needs_root_is_said_with_the_command_that_an_administrator_runs(
    bare: BareMachine, say: Say, tmp_path: Path
) -> None:
    programs = [name for name in BROWSERS if bare.has(name)]
    for program in programs:
        bare.hide(program)
    packages = {"chromium": "chromium", "chromium-browser": "chromium"}  # the latter is Ubuntu's name
    stand_ins = {name: {f"usr/local/bin/{program}": "#!/bin/sh\necho 7.0"} for name, program in packages.items()}
    open_market(bare, tmp_path / "market", stand_ins)
    done = say("setup", "--emulator", "miniwob")
    assert done.returncode == 1 and "workers that failed: 1" in done.stdout
    assert f"root or passwordless sudo is needed for this, and user {USER} has neither" in done.stderr
    [printed] = re.findall("error: worker w1: Chromium: `(.+)`: root", done.stderr)
    bare.as_root(printed)
    assert "ok     Chromium" in say("setup", "--dry-run", "--emulator", "miniwob").stdout
    close_market(bare)
    for program in programs:
        bare.bring_back(program)


def test_the_failure_of_one_worker_does_not_hold_up_the_others(bare: BareMachine, host: Path, say: Say) -> None:
    worker = {"host": bare.address.host, "username": USER, "key": bare.address.key}
    configure(bare, host, worker_ips=[worker | {"name": "w1"}, worker | {"name": "w2", "port": 2222}])
    done = say("setup", "--dry-run")
    assert done.returncode == 1
    assert "w1               would" in done.stdout
    assert f"error: worker w2: nothing listens at {bare.address.host}:2222" in done.stderr


def test_the_doctor_takes_the_overrides_of_a_run(say: Say) -> None:
    done = say("doctor", "--json", "worker_ips=[no-such-host.invalid]")
    assert done.returncode == 1
    failed = [check for check in json.loads(done.stdout) if not check["ok"]]
    assert [(check["worker"], check["check"]) for check in failed] == [("no-such-host.invalid", "name")]
    assert set(failed[0]) == {"worker", "check", "ok", "detail", "remedy"}
    shown = say("doctor", "worker_ips=[]")
    assert shown.returncode == 1 and "worker_ips is empty" in shown.stdout
    assert say("doctor", "no_such_key=1").returncode == 2
