"""A worker of a chaos run: its SSH server behind a relay, its processes, and its disk."""

from __future__ import annotations

import os
import shutil
import signal
import socket
import subprocess
import time
from contextlib import suppress
from getpass import getuser
from pathlib import Path
from typing import Any

import psutil

from chaos.processes import emulators, eventually, processes_with, running
from chaos.relay import Relay
from digirl_dist.parallel.free_port import free_port

_SBIN = "/usr/sbin:/usr/local/sbin:/sbin:" + os.environ.get("PATH", "")
CLOCK = Path(__file__).parent / "clock"


class Machine:
    """A worker machine. Its programs work in the folder ``jobs``; ``entry`` is its entry in ``worker_ips``."""

    def __init__(self, name: str, folder: Path, clock: Path) -> None:
        self.name = name
        self.jobs = folder / "jobs"
        self.disk: Disk | None = None
        self._folder = folder
        self.hostile = folder / "hostile"
        """Names the lie (see lies.py) of what is started on this machine from now on."""
        self._clock = clock
        self._port = free_port()
        self._sshd: subprocess.Popen[bytes] | None = None
        self.jobs.mkdir(parents=True)
        self._make_keys()
        self.relay = Relay(self._port)
        self.start_server()

    @property
    def known_host(self) -> str:
        return f"[127.0.0.1]:{self.relay.port} {(self._folder / 'host_key.pub').read_text()}"

    def entry(self, slots: int) -> dict[str, Any]:
        where = {"host": "127.0.0.1", "port": self.relay.port, "username": getuser()}
        return {
            **where,
            "name": self.name,
            "key": f"{self._folder}/user_key",
            "temp_path": str(self.jobs),
            "bsize": slots,
        }

    def start_server(self) -> None:
        sshd = shutil.which("sshd", path=_SBIN)
        assert sshd is not None, "sshd is missing: apt-get install openssh-server"
        with (self._folder / "sshd.log").open("ab") as log:
            self._sshd = subprocess.Popen([sshd, "-D", "-e", "-f", str(self._folder / "sshd_config")], stderr=log)
        assert eventually(self._listens, 10), f"sshd of {self.name} does not listen; see {self._folder}/sshd.log"

    def kill_server(self) -> None:
        """Kills the listener and every session."""
        assert self._sshd is not None
        for process in self.server():
            with suppress(psutil.NoSuchProcess):
                process.kill()
        self._sshd.wait()

    def let_in(self, allowed: bool) -> None:
        """Accepts the host's key at the next login, or not."""
        key = (self._folder / "user_key.pub").read_text()
        (self._folder / "authorized_keys").write_text(key if allowed else "")

    def close(self) -> None:
        self.kill_server()
        self.relay.close()

    def server(self) -> list[psutil.Process]:
        """Returns ``sshd`` and its sessions, without their commands."""
        assert self._sshd is not None
        try:
            listener = psutil.Process(self._sshd.pid)
            below = listener.children(recursive=True)
        except psutil.NoSuchProcess:
            return []
        return [listener, *(one for one in below if _name(one).startswith("sshd"))]

    def program(self) -> psutil.Process | None:
        """Returns the newest: one whose folder was deleted ends a moment later."""
        found = self._running("digirl_dist.worker_program.program")
        return max(found, key=lambda one: one.create_time(), default=None)

    def courier(self) -> psutil.Process | None:
        """Returns the courier that serves the newest connection."""
        found = self._running("digirl_dist.worker_program.courier")
        return max(found, key=lambda one: one.create_time(), default=None)

    def emulators(self) -> list[psutil.Process]:
        return emulators(processes_with(self.jobs))

    def _running(self, module: str) -> list[psutil.Process]:
        return running(module, processes_with(self.jobs))

    def _listens(self) -> bool:
        with socket.socket() as probe:
            return probe.connect_ex(("127.0.0.1", self._port)) == 0

    def _make_keys(self) -> None:
        folder = self._folder
        for name in ("host_key", "user_key"):
            command = ["ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-C", "chaos", "-f", str(folder / name)]
            subprocess.run(command, check=True)
        self.let_in(True)
        if os.getuid() == 0:
            Path("/run/sshd").mkdir(exist_ok=True)
        (folder / "sshd_config").write_text(
            f"ListenAddress 127.0.0.1\nPort {self._port}\nHostKey {folder}/host_key\nPidFile none\nUsePAM no\n"
            f"StrictModes no\nAuthorizedKeysFile {folder}/authorized_keys\nPasswordAuthentication no\n"
            "KbdInteractiveAuthentication no\nMaxStartups 100\nMaxSessions 100\nPermitRootLogin yes\n"
            f"SetEnv HOME={folder} OMP_NUM_THREADS=1 PYTHONPATH={CLOCK} "
            f"CHAOS_CLOCK={self._clock} CHAOS_HOSTILE={self.hostile}\n"
        )


class Disk:
    """A small separate disk, which can be filled. Needs root."""

    def __init__(self, folder: Path, size: str) -> None:
        self.folder = folder
        folder.mkdir(parents=True, exist_ok=True)
        subprocess.run(["mount", "-t", "tmpfs", "-o", f"size={size}", "digirl-dist-chaos", folder], check=True)

    def fill(self) -> None:
        """Uses up all free space."""
        with suppress(OSError), (self.folder / f"filler-{time.monotonic_ns()}").open("wb", buffering=0) as file:
            while True:
                file.write(bytes(4096))

    def make_room(self) -> None:
        for filler in self.folder.glob("filler-*"):
            filler.unlink()

    def close(self) -> None:
        subprocess.run(["umount", "--lazy", self.folder], check=True)


def send(process: psutil.Process | None, number: signal.Signals) -> bool:
    """Sends a signal; returns whether the process existed."""
    if process is None:
        return False
    try:
        process.send_signal(number)
    except psutil.NoSuchProcess:
        return False
    return True


def _name(process: psutil.Process) -> str:
    try:
        return process.name()
    except psutil.NoSuchProcess:
        return ""
