"""Loopback, where every user of the machine may connect: free ports, and who is at the other end of connections."""

from __future__ import annotations

import os
import random
import re
import socket
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import NamedTuple

from digirl_dist.errors import PeerError, RankError

_TABLES = tuple(Path(f"/proc/net/{name}") for name in ("tcp", "tcp6"))
_ESTABLISHED = "01"
_SOCKET = re.compile(r"socket:\[(\d+)]")
_PORTS = range(20_000, 32_768)
"""Below those from which kernels give a port to whoever connects, so that no connection takes it meanwhile."""


class _Connection(NamedTuple):
    local: str
    """Address and port, as the kernel writes them."""
    remote: str
    owner: int
    inode: int


@contextmanager
def refusing_strangers() -> Iterator[None]:
    """Refuses other users while ranks connect: gloo takes whoever comes first for the rank that it waits for.

    Raises PeerError at the end if another user has one of the connections that this process made meanwhile.
    """
    before = _own_sockets()
    yield
    table = _established()
    owners = {(entry.local, entry.remote): entry.owner for entry in table}
    ours = _own_sockets() - before
    for entry in table:
        other = owners.get((entry.remote, entry.local), os.geteuid())
        if entry.inode in ours and other != os.geteuid():
            raise PeerError(f"user {other} of this machine connected to this rank in place of another; it was refused")


def _own_sockets() -> set[int]:
    """Their inodes; none where there is no /proc."""
    found = set()
    for fd in Path("/proc/self/fd").glob("*"):
        try:
            told = _SOCKET.fullmatch(os.readlink(fd))
        except OSError:
            continue  # it was closed meanwhile
        if told:
            found.add(int(told[1]))
    return found


def _established() -> list[_Connection]:
    """TCP connections of all users that have an end on this machine."""
    lines = [line.split() for path in _TABLES if path.exists() for line in path.read_text().splitlines()[1:]]
    return [_Connection(line[1], line[2], int(line[7]), int(line[9])) for line in lines if line[3] == _ESTABLISHED]


def free_port() -> int:
    """Returns a free port of the loopback interface. Another process may take it: use it at once.

    Raises RankError if there is none.
    """
    for port in random.SystemRandom().sample(_PORTS, 100):
        with socket.socket() as probe:
            try:
                probe.bind(("127.0.0.1", port))
            except OSError:
                continue  # somebody has it
            return port
    raise RankError(f"100 ports of 127.0.0.1 between {_PORTS[0]} and {_PORTS[-1]} were tried, and none is free")
