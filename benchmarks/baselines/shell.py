"""The ``ssh`` and ``scp`` of the recipes: a new connection for each command, as the originals make them."""

from __future__ import annotations

import subprocess
from collections.abc import Sequence
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


def fetch(address: Address, remote: Sequence[Path], local: Path) -> None:
    _scp(address, [f"{address.user}@{address.host}:{path}" for path in remote], str(local))


def _scp(address: Address, sources: Sequence[str], target: str) -> None:
    subprocess.run(["scp", *options(address), "-r", *sources, target], check=True, capture_output=True)
