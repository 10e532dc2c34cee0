"""The device's side of the tests is a real one to Debian's ``adb``: what is proven against it, is proven over adb."""

from __future__ import annotations

import os
import subprocess
from collections.abc import Callable, Iterator
from pathlib import Path

import numpy as np
import pytest
from emulator.android.sites import RunningPhone

from digirl_dist.emulator.android import frames
from digirl_dist.emulator.android.adb import AdbServer
from digirl_dist.emulator.android.locks import Locks
from digirl_dist.emulator.android.ports import claim_ports
from digirl_dist.emulator.phone import layout

pytestmark = pytest.mark.component

Adb = Callable[..., bytes]


@pytest.fixture
def adb(phone: RunningPhone, tmp_path: Path) -> Iterator[Adb]:
    """The program, at a server of its own, connected to the phone."""
    locks = Locks(str(tmp_path / "locks"))
    server = AdbServer("127.0.0.1", claim_ports(locks, 5640).server)
    server.start("adb", tmp_path)

    def run(*words: str, device: bool = True) -> bytes:
        chosen = ["-s", phone.serial] if device else []
        environment = {**os.environ, "ANDROID_ADB_SERVER_PORT": str(server.port)}
        done = subprocess.run(["adb", *chosen, *words], env=environment, capture_output=True, timeout=20, check=False)
        assert done.returncode == 0, done.stdout + done.stderr
        return done.stdout

    assert b"connected to" in run("connect", phone.serial, device=False)
    yield run
    server.close()
    locks.release_all()


def test_adb_lists_the_device(adb: Adb, phone: RunningPhone) -> None:
    lines = adb("devices", "-l", device=False).decode().splitlines()
    [line] = [line for line in lines if line.startswith(phone.serial)]
    assert line.split()[1] == "device" and "model:Demo_Phone" in line


def test_adb_runs_commands_and_hands_on_their_status(adb: Adb) -> None:
    assert adb("shell", "getprop sys.boot_completed") == b"1\n"
    assert adb("shell", "false; echo $?") == b"1\n"
    with pytest.raises(AssertionError, match="inaccessible or not found"):
        adb("shell", "no-such-program")


def test_adb_takes_a_screenshot(adb: Adb) -> None:
    png = frames.read_png(adb("exec-out", "screencap", "-p"))
    raw = frames.read_raw(adb("exec-out", "screencap"))
    assert png.shape == (layout.HEIGHT, layout.WIDTH, 3)
    np.testing.assert_array_equal(png, raw)


def test_adb_copies_files_both_ways(adb: Adb, phone: RunningPhone, tmp_path: Path) -> None:
    content = os.urandom(300_000)
    (tmp_path / "there").write_bytes(content)
    adb("push", str(tmp_path / "there"), "/sdcard/file")
    assert phone.shell.files["/sdcard/file"] == content
    adb("pull", "/sdcard/file", str(tmp_path / "back"))
    assert (tmp_path / "back").read_bytes() == content


def test_adb_touches_the_screen(adb: Adb, phone: RunningPhone) -> None:
    rect = layout.icon_rect(0)
    adb("shell", "input", "tap", str(rect.left + 5), str(rect.top + 5))
    assert phone.shell.state.app is not None and phone.shell.state.app.name == "Clock"
