"""The ``ssh`` and ``scp`` of the recipes: a new connection for each command, as the originals make them."""

from __future__ import annotations

import subprocess
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

from digirl_dist.ssh.connection import Address


def options(address: Address) -> list[str]:
    return [
        *("-F", "/dev/null", "-q", "-i", str(address.key)),
        *("-o", f"UserKnownHostsFile={address.known_hosts}", "-o", "BatchMode=yes", "-o", f"Port={address.port}"),
    ]


def ssh(address: Address, command: str) -> list[str]:
    """The command line that runs ``command`` there."""
    return ["ssh", *options(address), f"{address.user}@{address.host}", command]


def run(address: Address, command: str) -> str:
    return subprocess.run(ssh(address, command), check=True, capture_output=True, text=True).stdout


def send(address: Address, local: Path, remote: Path) -> None:
    _scp(address, [str(local)], f"{address.user}@{address.host}:{remote}")


def fetch(address: Address, remote: Sequence[Path], local: Path, *more: str) -> None:
    """Fetches files or folders; ``more`` are further options of ``scp``."""
    _scp(address, [f"{address.user}@{address.host}:{path}" for path in remote], str(local), *more)


@contextmanager
def standing(address: Address, socket: Path) -> Iterator[tuple[str, ...]]:
    """Holds a connection with OpenSSH's fastest cipher; yields the options that let ``scp`` use it."""
    connect = ["-M", "-N", "-S", str(socket), "-c", "aes128-gcm@openssh.com"]
    master = subprocess.Popen(["ssh", *connect, *options(address), f"{address.user}@{address.host}"])
    try:
        while not socket.exists():
            assert master.poll() is None, "ssh cannot connect"
            time.sleep(0.01)
        yield "-o", f"ControlPath={socket}"
    finally:
        master.terminate()
        master.wait()


def _scp(address: Address, sources: Sequence[str], target: str, *more: str) -> None:
    subprocess.run(["scp", *options(address), *more, "-r", *sources, target], check=True, capture_output=True)
