"""The device's side of the tests is a real one to Debian's ``adb``: what is proven against it, is proven over adb."""

from __future__ import annotations

import os
import subprocess
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path

import numpy as np
import pytest
from emulator.android.sites import RunningPhone
from listening import as_another_user, listeners
from process_watch import processes_with

from digirl_dist.emulator.android import screen
from digirl_dist.emulator.android.adb import AdbServer, adb_client, started_server
from digirl_dist.emulator.android.locks import Locks, claim_ports
from digirl_dist.emulator.phone import layout
from digirl_dist.errors import EmulatorError

pytestmark = pytest.mark.component

Adb = Callable[..., bytes]


@pytest.fixture
def adb(phone: RunningPhone, tmp_path: Path) -> Iterator[Adb]:
    """The program, at a server of its own, connected to the phone."""
    locks = Locks(str(tmp_path / "locks"))
    console = claim_ports(locks, 5640).console
    server = started_server("adb", locks.folder, console)

    def run(*words: str, device: bool = True) -> bytes:
        chosen = ["-s", phone.serial] if device else []
        command = ["adb", "-L", f"localfilesystem:adb-{console}.socket", *chosen, *words]
        done = subprocess.run(command, cwd=locks.folder, capture_output=True, timeout=20, check=False)
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
    png = screen.read_png(adb("exec-out", "screencap", "-p"))
    raw = screen.read_raw(adb("exec-out", "screencap"))
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


CONNECT = """
import socket, sys
try:
    socket.socket(socket.AF_UNIX).connect(sys.argv[1])
except PermissionError:
    print("refused")
"""


@pytest.mark.parametrize("umask", [0o000, 0o022])
def test_nothing_of_a_server_listens_for_other_users(umask: int) -> None:
    before = os.umask(umask)
    try:
        with tempfile.TemporaryDirectory(dir="/tmp") as folder:
            os.chmod(folder, 0o755)  # even so
            server = started_server("adb", Path(folder), 5640)
            assert server.answers()
            assert listeners(server.pid) == []
            assert as_another_user(CONNECT, f"{folder}/adb-5640.socket").stdout == "refused\n"
            server.close()
    finally:
        os.umask(before)


def test_a_server_that_is_not_there_is_not_started(tmp_path: Path) -> None:
    """As the library does with a daemon of its own, at a port for everybody."""
    with pytest.raises(EmulatorError, match="failed to list its devices"):
        AdbServer(adb_client().SocketFile(tmp_path, "none.socket")).states()
    assert not processes_with(tmp_path), "adb starts servers as `adb -L localfilesystem:PATH fork-server`"
