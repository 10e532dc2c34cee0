"""A setup script of the user's, as the worker's installer runs it."""

from __future__ import annotations

import os
import signal
import sys
import threading
import zipfile
from collections.abc import Sequence
from contextlib import nullcontext
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import psutil
import pytest
from process_watch import eventually

from digirl_dist.worker_program.bootstrap import OWN_FOLDER, Failed, Installation, InstallRequest

pytestmark = pytest.mark.component


def request_for(folder: Path, setup: str, limit_s: float, requirements: Sequence[str] = ()) -> InstallRequest:
    blank = {"folder": str(folder), "wheel": "", "size": 0, "digest": "", "constraints": [], "pip_args": []}
    more = {"netrc": "", "proxy": "", "cpu_index": "", "reuse_packages": False, "uv": False, "look_only": False}
    own = {"setup": setup, "limit_s": limit_s, "requirements": list(requirements)}
    return InstallRequest(**blank, **more, **own)  # type: ignore[arg-type]


@dataclass
class Script:
    """Runs scripts for a host behind a pipe."""

    folder: Path

    def run(self, text: str, limit_s: float = 100.0, leaves: bool = False) -> None:
        here, host = os.pipe()
        request = request_for(self.folder, text, limit_s)
        pip = self.folder / OWN_FOLDER / "venv" / "bin" / "pip"
        pip.parent.mkdir(parents=True, exist_ok=True)
        pip.touch()
        if leaves:
            threading.Thread(target=lambda: eventually(self.pid.exists, 60, "the script") or os.close(host)).start()
        with os.fdopen(here, "rb") as source:
            Installation(request, source)._set_up()

    @property
    def pid(self) -> Path:
        return self.folder / "pid"

    def has_ended(self) -> bool:
        return not psutil.pid_exists(int(self.pid.read_text()))


def test_a_setup_script_may_leave_programs_running_and_print_without_end(tmp_path: Path) -> None:
    script = Script(tmp_path)
    prints = "head -c 50000000 /dev/zero; echo; stat -c %a $0; echo last words"
    leaves = f"sleep 1000 & echo $! > {script.pid}"
    for status in (0, 3):
        with pytest.raises(Failed, match="(?s)status 3: .*600\nlast words$") if status else nullcontext():
            script.run(f"{prints}; {leaves}; exit {status}")
        assert not script.has_ended()
        os.kill(int(script.pid.read_text()), signal.SIGKILL)
    assert not (tmp_path / OWN_FOLDER / "setup.sh").exists()


@pytest.mark.parametrize(
    ("words", "told"), [({"limit_s": 0.0}, "not done within 0 s"), ({"leaves": True}, "went away")]
)
def test_a_setup_script_that_hangs_ends_at_its_limit_or_with_its_host(
    words: dict[str, Any], told: str, tmp_path: Path
) -> None:
    script = Script(tmp_path)
    with pytest.raises(Failed, match=f"cannot run emulator.setup: .*{told}"):
        script.run(f"echo $$ > {tmp_path}/part; mv {tmp_path}/part {script.pid}; sleep 1000", **words)
    assert not script.pid.exists() or script.has_ended()


@pytest.mark.parametrize("other", [True, False])
def test_an_installation_whose_host_has_gone_makes_way_for_another_one_alone(other: bool, tmp_path: Path) -> None:
    with open(os.devnull, "rb") as gone:
        first = Installation(request_for(tmp_path, "", 100.0, ["endless"]), gone)
        next_one = Installation(request_for(tmp_path, "", 60.0, ["sane" if other else "endless"]), gone)
        first._claim()
        waiting = threading.Thread(target=_locked, args=[next_one])
        with first._lock():
            waiting.start()
            with pytest.raises(Failed, match="another one wants something else") if other else nullcontext():
                first._run(["sleep", "1000" if other else "1"], "install the package")
        waiting.join(30.0)
        assert not waiting.is_alive()


def test_an_installation_waits_for_another_one_until_its_limit(tmp_path: Path) -> None:
    with open(os.devnull, "rb") as gone:
        first, second = (Installation(request_for(tmp_path, "", limit_s, []), gone) for limit_s in (100.0, 0.0))
        first._claim()
        with first._lock(), pytest.raises(Failed, match="another installation in .* did not end in time"):
            _locked(second)


def _locked(one: Installation) -> None:
    with one._lock():
        pass


def test_packages_that_contradict_each_other_are_named_with_who_wants_what(tmp_path: Path) -> None:
    for version in ("1", "2"):
        with zipfile.ZipFile(tmp_path / f"alpha-{version}-py3-none-any.whl", "w") as wheel:
            info = f"alpha-{version}.dist-info"
            wheel.writestr(f"{info}/METADATA", f"Metadata-Version: 2.1\nName: alpha\nVersion: {version}\n")
            wheel.writestr(f"{info}/WHEEL", "Wheel-Version: 1.0\nRoot-Is-Purelib: true\nTag: py3-none-any\n")
            wheel.writestr(f"{info}/RECORD", "")
    with pytest.raises(Failed, match=r"(?s)caused by.*The user requested alpha==1.*The user requested alpha==2\n"):
        run_pip(tmp_path / "env", f"--find-links={tmp_path}", "alpha==1", "alpha==2")


def test_a_place_of_packages_that_pip_left_out_is_named(tmp_path: Path) -> None:
    (tmp_path / "constraints").write_text("alpha==1")
    with pytest.raises(Failed, match=f"(?s)'{tmp_path}/away' is ignored.*requested .constraint. alpha==1"):
        run_pip(tmp_path / "env", f"--find-links={tmp_path}/away", "-c", str(tmp_path / "constraints"), "alpha")


def run_pip(folder: Path, *words: str) -> None:
    here, host = os.pipe()
    with os.fdopen(here, "rb") as source, os.fdopen(host, "wb"):
        installation = Installation(request_for(folder, "", 100.0), source)
        (installation._venv / "bin").mkdir(parents=True)
        (installation._venv / "bin" / "pip").touch()
        (installation._venv / "bin" / "python").symlink_to(sys.executable)
        installation._pip("--dry-run", "--no-index", *words)
