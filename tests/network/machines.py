"""Worker machines of the tests: a network namespace each, a real link to it, and OpenSSH's server inside."""

from __future__ import annotations

import os
import re
import shutil
import signal
import subprocess
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path

import psutil

from benchmarks.sshd import SBIN, Sshd
from chaos.processes import emulators, running
from digirl_dist.child_process import environment

_NOBODY = "02:00:00:00:00:99"
"""A hardware address that no interface has: what is sent to it is dropped without a word."""


def what_is_missing() -> str:
    """Why machines cannot be made here; empty if they can."""
    if os.geteuid() != 0:
        return "network namespaces need root"
    for command, package in (
        ("ip", "iproute2"),
        ("nsenter", "util-linux"),
        ("sshd", "openssh-server"),
        ("ssh-keygen", "openssh-client"),
    ):
        if shutil.which(command, path=SBIN) is None:
            return f"{command} is missing: apt-get install {package}"
    probe = f"ddprobe{os.getpid()}"
    made = subprocess.run(["ip", "netns", "add", probe], capture_output=True, text=True)
    if made.returncode != 0:
        return f"this machine makes no network namespaces: {made.stderr.strip()}"
    _ip("netns", "del", probe)
    return ""


def remove_leftovers() -> None:
    """Take down the machines of test runs that were killed; the process in a namespace's name is gone."""
    listed = subprocess.run(["ip", "netns", "list"], check=True, capture_output=True, text=True).stdout
    for namespace in (line.split()[0] for line in listed.splitlines()):
        found = re.fullmatch(r"dd(\d+)-\d+", namespace)
        if found and not psutil.pid_exists(int(found[1])):
            _end_all(_inside(namespace))
            _ip("netns", "del", namespace)  # its end of the link goes with it, and so the other


@contextmanager
def machine(number: int, folder: Path) -> Iterator[Machine]:
    """A machine for the time of a ``with``; it is taken down however far its setup came."""
    made = Machine(number, folder)
    try:
        made.open()
        yield made
    finally:
        made.close()


class Machine:
    """One worker, reached at ``address``; ``jobs`` is its folder for jobs."""

    def __init__(self, number: int, folder: Path) -> None:
        self.name = f"w{number}"
        self.jobs = folder / "jobs"
        self._folder = folder
        self._namespace = f"dd{os.getpid()}-{number}"
        self._outside = f"dd{os.getpid() % 10**7}v{number}"
        self._net = _free_net()
        self.jobs.mkdir(parents=True)
        self.enter = ["nsenter", f"--net=/run/netns/{self._namespace}"]
        self.sshd = Sshd(folder, f"{self._net}.2", self.enter)
        self.address = self.sshd.address(self.name)

    def open(self) -> None:
        """Make the link and the keys, and start the server."""
        _ip("netns", "add", self._namespace)
        _ip("link", "add", self._outside, "type", "veth", "peer", "name", "eth0", "netns", self._namespace)
        _ip("addr", "add", f"{self._net}.1/24", "dev", self._outside)
        _ip("link", "set", self._outside, "up")
        for words in (("addr", "add", f"{self._net}.2/24", "dev", "eth0"), ("link", "set", "lo", "up")):
            _ip("-n", self._namespace, *words)
        self.plug_in()
        self.sshd.start()

    def close(self) -> None:
        """Whatever state it is in. Processes go by their namespace, which only this machine's have."""
        _end_all(_inside(self._namespace))
        self.sshd.close()
        for command in (["link", "del", self._outside], ["netns", "del", self._namespace]):
            subprocess.run(["ip", *command], capture_output=True)  # may never have come to be

    # --- the link

    def unplug(self) -> None:
        _ip("-n", self._namespace, "link", "set", "eth0", "down")

    def plug_in(self) -> None:
        _ip("-n", self._namespace, "link", "set", "eth0", "up")

    def drop_what_comes(self) -> None:
        """Packets of the host vanish on their way here."""
        _ip("neigh", "replace", f"{self._net}.2", "lladdr", _NOBODY, "dev", self._outside, "nud", "permanent")

    def drop_what_goes(self) -> None:
        """Packets from here vanish on their way to the host."""
        there = ("neigh", "replace", f"{self._net}.1", "lladdr", _NOBODY, "dev", "eth0", "nud", "permanent")
        _ip("-n", self._namespace, *there)

    # --- its processes

    def start(self, command: Sequence[str]) -> subprocess.Popen[bytes]:
        """Run a command there, with pipes for its input and output."""
        pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE}
        return subprocess.Popen([*self.enter, *command], env=environment(), **pipes)

    def programs(self) -> list[psutil.Process]:
        return self._running("digirl_dist.worker_program.program")

    def couriers(self) -> list[psutil.Process]:
        return self._running("digirl_dist.worker_program.courier")

    def emulators(self) -> list[psutil.Process]:
        return emulators(_inside(self._namespace))

    def left(self) -> list[str]:
        """What runs here besides ``sshd``."""
        found = []
        for process in _inside(self._namespace):
            with suppress(psutil.Error):
                if not process.name().startswith("sshd") and process.status() != psutil.STATUS_ZOMBIE:
                    found.append(" ".join(process.cmdline()))
        return found

    def _running(self, module: str) -> list[psutil.Process]:
        return running(module, _inside(self._namespace))


def freeze(process: psutil.Process) -> None:
    process.send_signal(signal.SIGSTOP)


def _inside(namespace: str) -> list[psutil.Process]:
    """The processes of that network namespace."""
    pids = subprocess.run(["ip", "netns", "pids", namespace], capture_output=True, text=True).stdout.split()
    found = []
    for pid in pids:
        with suppress(psutil.NoSuchProcess):
            found.append(psutil.Process(int(pid)))
    return found


def _end_all(processes: Sequence[psutil.Process]) -> None:
    for process in processes:
        with suppress(psutil.NoSuchProcess):
            process.kill()


def _ip(*words: str) -> None:
    subprocess.run(["ip", *words], check=True, capture_output=True)


def _free_net() -> str:
    """The first three numbers of a network that this machine does not use, such as 10.203.7."""
    used = subprocess.run(["ip", "-4", "-o", "addr"], check=True, capture_output=True, text=True).stdout
    start = os.getpid() % 250
    nets = [f"10.203.{1 + (start + step) % 250}" for step in range(250)]
    return next(net for net in nets if f" {net}." not in used)
