"""The shell steps of worker/, run by bash as they are."""

from __future__ import annotations

import os
import subprocess
from pathlib import Path
from unittest.mock import MagicMock, Mock

import pytest
from sdkmanager_stand_in import SDK_TOOL

from digirl_dist.doctor.setup import SetupProgress, _run
from digirl_dist.errors import InstallError

pytestmark = pytest.mark.component

ROOT = Path(__file__).resolve().parents[2]
WORKER = ROOT / "worker"


def bash(script: str, **variables: str) -> subprocess.CompletedProcess[str]:
    text = f"source {WORKER}/steps.sh\n{script}"
    environment = {**os.environ, **variables}
    return subprocess.run(["bash", "-s"], input=text, env=environment, capture_output=True, text=True, timeout=60)


def test_a_step_acts_only_when_its_check_fails(tmp_path: Path) -> None:
    script = f"there() {{ [ -e {tmp_path}/it ]; }}\nmake() {{ run touch {tmp_path}/it; }}\nstep it there make"
    planned = bash(script, DRY_RUN="yes")
    assert planned.stdout == f"would\tit\ttouch {tmp_path}/it\n" and not (tmp_path / "it").exists()
    assert bash(script).stdout == "doing\tit\tmake\ndone\tit\t\n"
    assert bash(script).stdout == "ok\tit\t\n"


def test_a_step_that_fails_shows_its_command_and_last_lines_and_ends_the_setup() -> None:
    script = 'no() { false; }\nact() { run sh -c "seq 30; exit 3"; }\nstep it no act\nstep after no act'
    done = bash(script)
    lines = done.stdout.splitlines()
    assert done.returncode == 1 and lines[1] == "failed\tit\tsh -c seq 30; exit 3"
    assert lines[2:] == [str(number) for number in range(16, 31)]


@pytest.mark.parametrize("state", ["failed", "doing"])
def test_of_what_a_hostile_worker_prints_without_end_a_part_is_shown(state: str) -> None:
    told: list[SetupProgress] = []
    channel = Mock(readline=lambda _: f"{state}\tx\t{'e' * (1 << 20)}\n".encode())
    with pytest.raises(InstallError) as error:
        _run(MagicMock(**{"package.limit_s": 60.0}), "", Mock(open=lambda _: channel), told.append)
    assert len(f"{told}{error.value}") < 500_000


def test_a_step_that_does_not_help_is_told() -> None:
    done = bash("no() { echo still broken; false; }\nact() { run true; }\nstep it no act")
    assert done.returncode == 1 and "still broken" in done.stdout and "its check still fails" in done.stdout


def test_what_a_step_runs_does_not_read_the_rest_of_the_script(tmp_path: Path) -> None:
    done = bash(
        f"no() {{ [ -e {tmp_path}/it ]; }}\nact() {{ cat; touch {tmp_path}/it; }}\nstep it no act\necho the end"
    )
    assert done.stdout.endswith("the end\n")


def test_the_setup_for_oneself_names_what_there_is() -> None:
    done = subprocess.run([WORKER / "setup.sh", "abacus"], capture_output=True, text=True)
    assert done.returncode == 2 and "there are: android gymnasium miniwob" in done.stderr


def android(folder: Path, **variables: str) -> subprocess.CompletedProcess[str]:
    more = {"ANDROID_SDK": str(folder / "sdk"), "ANDROID_AVD_HOME": str(folder / "avd"), "ANDROID_AVD": "pixel"}
    environment = {**os.environ, "PATH": f"{folder / 'bin'}:{os.environ['PATH']}", **more, **variables}
    command = [WORKER / "setup.sh", "android"]
    return subprocess.run(command, env=environment, capture_output=True, text=True, timeout=60)


@pytest.fixture
def tools(tmp_path: Path) -> Path:
    """Command line tools that stand for Google's, and the programs that they need."""
    tools = tmp_path / "sdk" / "cmdline-tools" / "latest" / "bin"
    tools.mkdir(parents=True)
    (tmp_path / "bin").mkdir()
    for path in (tools / "sdkmanager", tools / "avdmanager"):
        path.write_text(SDK_TOOL)
        path.chmod(0o755)
    for name in ("java", "unzip", "curl"):
        (tmp_path / "bin" / name).write_text("#!/bin/sh\n")
        (tmp_path / "bin" / name).chmod(0o755)
    if not os.access("/dev/kvm", os.W_OK):
        pytest.skip("this machine has no /dev/kvm, without which the setup ends")
    return tmp_path


def test_nothing_of_android_is_installed_before_the_licences_are_accepted(tools: Path) -> None:
    done = android(tools)
    assert done.returncode == 1 and "install.android.accept_licenses=true" in done.stdout
    assert not (tools / "sdk" / "platform-tools").exists() and not (tools / "sdk" / "log").exists()


def test_known_tools_that_are_not_googles_are_not_unpacked(tools: Path) -> None:
    for name in ("sdkmanager", "avdmanager"):
        (tools / "sdk" / "cmdline-tools" / "latest" / "bin" / name).unlink()
    (tools / "bin" / "curl").write_text("#!/bin/sh\necho other >$5\n")
    (tools / "bin" / "unzip").write_text(f"#!/bin/sh\ntouch {tools}/unpacked\n")
    unpacked = tools / "unpacked"
    for name, is_trusted in (("commandlinetools-linux-11076708_latest.zip", False), ("mine.zip", True)):
        done = android(tools, ANDROID_TOOLS_URL=f"https://mirror/{name}")
        assert done.returncode == 1 and unpacked.exists() == is_trusted, done.stdout
        assert ("sha256sum: WARNING" in done.stdout) != is_trusted, done.stdout


def test_the_snapshot_is_made_by_the_package_once_it_is_there(tmp_path: Path) -> None:
    content = tmp_path / "pixel.avd"
    (tmp_path / "pixel.ini").write_text(f"path={content}\n")
    python = tmp_path / "python"
    python.write_text(f'#!/bin/sh\nmkdir -p {content}/snapshots/$4\necho "$*" > {content}/snapshots/$4/snapshot.pb\n')
    python.chmod(0o755)
    variables = {"ANDROID_AVD": "pixel", "ANDROID_AVD_HOME": str(tmp_path), "ANDROID_SNAPSHOT": "home"}
    script = (WORKER / "after" / "android.sh").read_text()
    done = bash(script, PACKAGE_PYTHON=str(python), **variables)
    assert done.stdout.splitlines()[-1] == "done\tsnapshot home of AVD pixel\t", done.stdout
    made = (content / "snapshots" / "home" / "snapshot.pb").read_text()
    assert made == "-m digirl_dist.emulator.android.snapshot pixel home\n"
    assert bash(script, PACKAGE_PYTHON="/bin/false", **variables).stdout.startswith("ok\t")


def test_android_is_set_up_once(tools: Path) -> None:
    done = android(tools, ANDROID_ACCEPT_LICENSES="yes")
    assert done.returncode == 0, done.stdout
    assert done.stdout.splitlines()[-1] == "done\tAVD pixel\t" and (tools / "avd" / "pixel.ini").exists()
    before = (tools / "sdk" / "log").read_text()
    assert "--package system-images;android-34;google_apis;x86_64" in before
    again = android(tools, ANDROID_ACCEPT_LICENSES="yes")
    assert {line.split("\t")[0] for line in again.stdout.splitlines()} == {"ok"}
    assert (tools / "sdk" / "log").read_text() == before
