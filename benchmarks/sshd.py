"""OpenSSH's server with keys and a configuration of its own: the worker machine of chaos runs, benchmarks and tests."""

from __future__ import annotations

import os
import shutil
import socket
import subprocess
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from getpass import getuser
from pathlib import Path

import psutil

from digirl_dist.parallel.loopback import free_port
from digirl_dist.ssh.connection import Address

SBIN = "/usr/sbin:/usr/local/sbin:/sbin:" + os.environ.get("PATH", "")
PROGRAM = shutil.which("sshd", path=SBIN)
_LOOPBACK = "127.0.0.1"
_START_S = 120.0


def eventually(condition: Callable[[], object], limit_s: float) -> bool:
    """Waits for ``condition``; returns whether it became true within the limit."""
    asked = time.monotonic()
    deadline = asked + limit_s
    while not condition():
        took_s = time.monotonic() - asked
        if asked + took_s > deadline:
            return False
        time.sleep(min(0.5, max(0.02, 10 * took_s)))  # what is waited for needs the processors itself
        asked = time.monotonic()
    return True


class Sshd:
    """Listens on a free port of loopback, or on port 22 of another ``host``. Its files lie in ``folder``.

    ``prefix`` runs it elsewhere, in a network namespace say. ``variables`` are those of its sessions, and ``more``
    further lines of its configuration.
    """

    def __init__(
        self, folder: Path, host: str = _LOOPBACK, prefix: Sequence[str] = (), variables: str = "", more: str = ""
    ) -> None:
        self.host = host
        self.port = free_port() if host == _LOOPBACK else 22
        self.process: subprocess.Popen[bytes] | None = None
        self._folder = folder
        self.log = folder / "sshd.log"
        self.configuration = folder / "sshd_config"
        self.command = [*prefix, str(PROGRAM), "-D", "-e", "-f", str(self.configuration)]
        folder.mkdir(parents=True, exist_ok=True)
        for name in ("host_key", "user_key"):
            make_key(folder / name)
        self.let_in(True)
        self.configuration.write_text(
            f"ListenAddress {host}\nPort {self.port}\nHostKey {folder}/host_key\nPidFile none\nUsePAM no\n"
            f"StrictModes no\nAuthorizedKeysFile {folder}/authorized_keys {folder}/.ssh/authorized_keys\n"
            "PasswordAuthentication no\nKbdInteractiveAuthentication no\nSubsystem sftp internal-sftp\n"
            f"SetEnv HOME={folder} {variables}\n"  # no start-up files of the user's shell: they may take seconds
            f"{more}\n"
        )
        place = host if self.port == 22 else f"[{host}]:{self.port}"
        (folder / "known_hosts").write_text(f"{place} {(folder / 'host_key.pub').read_text()}")

    def address(self, name: str) -> Address:
        """Returns how this machine's user reaches it."""
        keys = str(self._folder / "user_key"), str(self._folder / "known_hosts")
        return Address(name, self.host, self.port, getuser(), *keys)

    def start(self) -> None:
        assert PROGRAM is not None, "sshd is missing: apt-get install openssh-server"
        if os.getuid() == 0:
            Path("/run/sshd").mkdir(exist_ok=True)
        with self.log.open("ab") as log:
            self.process = subprocess.Popen(self.command, stdout=log, stderr=log)
        assert eventually(self._listens, _START_S), f"sshd does not listen; see {self.log}"

    def processes(self) -> list[psutil.Process]:
        """Returns the listener and those that serve one connection each, without their commands."""
        found = self._family()
        return [*found[:1], *(one for one in found[1:] if _name(one).startswith("sshd"))]

    def sessions(self) -> list[psutil.Process]:
        """Returns those that serve one connection each."""
        return self.processes()[1:]

    def kill(self) -> None:
        """Kills the listener and every session; what runs in them learns it by its pipes."""
        self._end(self.processes())

    def close(self) -> None:
        """Kills everything below it, too. It may have ended, or not have started."""
        self._end(self._family())

    def let_in(self, allowed: bool) -> None:
        """Accepts the user's key at the next login, or not."""
        key = (self._folder / "user_key.pub").read_text()
        (self._folder / "authorized_keys").write_text(key if allowed else "")

    def _family(self) -> list[psutil.Process]:
        try:
            listener = psutil.Process(self.process.pid) if self.process is not None else None
            return [] if listener is None else [listener, *listener.children(recursive=True)]
        except psutil.NoSuchProcess:
            return []

    def _end(self, processes: Sequence[psutil.Process]) -> None:
        for each in processes:
            with suppress(psutil.NoSuchProcess):
                each.kill()
        if self.process is not None:
            self.process.wait()

    def _listens(self) -> bool:
        with socket.socket() as probe:
            probe.settimeout(1.0)
            return probe.connect_ex((self.host, self.port)) == 0


def make_key(path: Path, passphrase: str = "") -> Path:
    """Makes a key pair; returns the private one's path."""
    subprocess.run(["ssh-keygen", "-q", "-t", "ed25519", "-N", passphrase, "-C", "test", "-f", path], check=True)
    return path


def _name(process: psutil.Process) -> str:
    try:
        return process.name()
    except psutil.NoSuchProcess:
        return ""
