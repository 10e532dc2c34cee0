"""A worker of a chaos run: its SSH server behind a relay, its processes, and its disk."""

from __future__ import annotations

import signal
import subprocess
import time
from contextlib import suppress
from getpass import getuser
from pathlib import Path
from typing import Any

import psutil

from benchmarks.sshd import Sshd
from chaos.processes import emulators, processes_with, running
from chaos.relay import Relay

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
        self.told = folder / "hostile.told"
        """Exists as soon as the lie was told (see hostile.py)."""
        variables = f"OMP_NUM_THREADS=1 PYTHONPATH={CLOCK} CHAOS_CLOCK={clock} CHAOS_HOSTILE={self.hostile}"
        self.sshd = Sshd(folder, variables=variables, more="MaxStartups 100\nMaxSessions 100\nPermitRootLogin yes")
        self.jobs.mkdir(parents=True)
        self.relay = Relay(self.sshd.port)
        self.sshd.start()

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

    def close(self) -> None:
        self.sshd.kill()
        self.relay.close()

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
