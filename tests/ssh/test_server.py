"""The embedded server of the dry run: it leaves nothing behind, whoever dies."""

from __future__ import annotations

import os
import signal
import stat
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import psutil
import pytest
from process_watch import eventually

from chaos.processes import runs
from digirl_dist.errors import SettingsError
from digirl_dist.settings import SshSettings
from digirl_dist.ssh.connect import connect
from digirl_dist.ssh.connection import Connection
from digirl_dist.ssh.localhost_server import LocalhostServer

pytestmark = pytest.mark.component

_OWNER = """
import pathlib, sys, time
from digirl_dist.ssh.localhost_server import LocalhostServer
server = LocalhostServer("w1", pathlib.Path(sys.argv[1]))
server.start()
print(server.pid, flush=True)
time.sleep(60)
"""


@pytest.fixture
def server(tmp_path: Path) -> Iterator[LocalhostServer]:
    server = LocalhostServer("w1", tmp_path / "server")
    yield server
    server.stop()


def _pid_printed_by(link: Connection, command: str) -> int:
    channel = link.open(command)
    pid = int(channel.readline(5.0))
    channel.close()
    return pid


def test_it_listens_on_loopback_with_private_keys_of_its_own(server: LocalhostServer, tmp_path: Path) -> None:
    address = server.start()
    listening = [each.laddr.ip for each in psutil.Process(server.pid).net_connections() if each.status == "LISTEN"]
    assert listening == ["127.0.0.1"]
    for name in ("user_key", "known_hosts"):
        assert stat.S_IMODE((tmp_path / "server" / name).stat().st_mode) == 0o600
    assert address.key == str(tmp_path / "server/user_key")


def test_its_keys_are_new_at_every_start(tmp_path: Path) -> None:
    texts = []
    for _ in range(2):
        with LocalhostServer("w1", tmp_path / "server") as address, connect(address, SshSettings()) as link:
            assert link.run("true").status == 0
            texts.append(Path(str(address.key)).read_text())
    assert texts[0] != texts[1]


def test_a_command_is_killed_with_its_children_when_its_channel_closes(server: LocalhostServer) -> None:
    with connect(server.start(), SshSettings()) as link:
        pid = _pid_printed_by(link, "sleep 60 & echo $!; wait")
        eventually(lambda: not runs(pid))


def test_a_daemon_outlives_its_channel_the_connection_and_the_server(server: LocalhostServer) -> None:
    with connect(server.start(), SshSettings()) as link:
        pid = _pid_printed_by(link, "setsid sh -c 'echo $$; exec sleep 60' 2>/dev/null </dev/null")
        time.sleep(0.3)
    server.stop()
    assert runs(pid)
    os.kill(pid, signal.SIGKILL)


def test_stopping_ends_the_running_commands(server: LocalhostServer) -> None:
    with connect(server.start(), SshSettings()) as link:
        channel = link.open("echo $$; exec sleep 60")
        pid = int(channel.readline(5.0))
        started = time.monotonic()
        server.stop()
        assert time.monotonic() - started < 30.0
        eventually(lambda: not runs(pid))


def test_stopping_a_frozen_server_is_bounded(server: LocalhostServer) -> None:
    server.start()
    pid = server.pid
    os.kill(pid, signal.SIGSTOP)
    started = time.monotonic()
    server.stop()
    assert time.monotonic() - started < 40.0
    assert not runs(pid)


def test_it_ends_when_its_owner_is_killed(tmp_path: Path) -> None:
    owner = subprocess.Popen([sys.executable, "-c", _OWNER, str(tmp_path)], stdout=subprocess.PIPE, text=True)
    assert owner.stdout is not None
    pid = int(owner.stdout.readline())
    assert runs(pid)
    owner.kill()
    owner.wait()
    owner.stdout.close()
    eventually(lambda: not runs(pid))


def test_port_forwarding_is_refused(server: LocalhostServer) -> None:
    address = server.start()
    options = ["-i", str(address.key), "-o", f"UserKnownHostsFile={address.known_hosts}", "-o", "BatchMode=yes"]
    target = [f"{address.user}@{address.host}", "-p", str(address.port)]
    done = subprocess.run(["ssh", *options, "-W", "127.0.0.1:22", *target], capture_output=True, text=True, timeout=120)
    assert done.returncode != 0 and "open failed" in done.stderr


def test_without_asyncssh_the_package_to_install_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "asyncssh.py").write_text("raise ModuleNotFoundError('hidden', name='asyncssh')\n")
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))
    with pytest.raises(SettingsError, match="pip install asyncssh"):
        LocalhostServer("w1", tmp_path / "server").start()
