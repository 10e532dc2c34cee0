"""Which ports a slot uses on its machine: two, for the emulator itself."""

from __future__ import annotations

import socket
from typing import NamedTuple

from digirl_dist.emulator.android.locks import Locks
from digirl_dist.errors import EmulatorError

LAST_CONSOLE = 5682
"""The emulator program takes no higher console port."""


class Ports(NamedTuple):
    """Console (even), and adb of the emulator (the next)."""

    console: int
    adb: int


def claim_ports(locks: Locks, first: int) -> Ports:
    """The first ports from ``first`` on that neither another slot nor another program has. Raises EmulatorError."""
    for console in range(first, LAST_CONSOLE + 1, 2):
        ports = Ports(console, console + 1)
        name = f"port-{console}"
        if not locks.take(name):
            continue
        if all(map(_is_free, ports)):
            return ports
        locks.release(name)
    raise EmulatorError(
        f"all pairs of ports from emulator.first_port={first} to {LAST_CONSOLE} are in use on this machine; "
        "lower bsize, or end emulators that were left behind"
    )


def _is_free(port: int) -> bool:
    with socket.socket() as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind(("127.0.0.1", port))
        except OSError:
            return False
        return True
