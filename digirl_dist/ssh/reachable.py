"""Looks, before a run begins, whether names resolve and machines accept connections; logs in nowhere."""

from __future__ import annotations

import socket
import threading
import time
from collections.abc import Sequence
from dataclasses import dataclass

from digirl_dist.errors import failure_here
from digirl_dist.plain_text import host_and_port
from digirl_dist.settings import SshSettings
from digirl_dist.ssh.carriers import Carrier, carrier
from digirl_dist.ssh.connection import Address

_LIMIT_S = 10.0


@dataclass
class Reached:
    """What is known of one machine so far."""

    host: str
    resolves: bool = False
    defect: str | None = "its name was not resolved in time"
    """None: it accepts connections, or is behind another host, and only a login would tell."""


def reach(hosts: Sequence[tuple[str, int | None]], settings: SshSettings) -> list[Reached]:
    """Looks at all hosts, each a name or a ``Host`` of ~/.ssh/config and a port, at once; takes 10 s at most."""
    program = carrier(settings)
    found = [Reached(host) for host, _ in hosts]
    threads = [
        threading.Thread(
            target=_look, args=(each, port, program, settings), daemon=True
        )  # a resolver cannot be interrupted
        for each, (_, port) in zip(found, hosts, strict=True)
    ]
    for thread in threads:
        thread.start()
    deadline = time.monotonic() + _LIMIT_S
    for thread in threads:
        thread.join(max(0.0, deadline - time.monotonic()))
    return found


def _look(machine: Reached, port: int | None, program: Carrier, settings: SshSettings) -> None:
    try:
        host, at, is_behind = program.whereabouts(Address(machine.host, machine.host, port), settings)
    except Exception as error:  # a lack of this host is no mistake in the name
        machine.resolves, machine.defect = True, str(failure_here(machine.host, "look for it", error))
        return
    if is_behind:
        machine.resolves, machine.defect = True, None
        return
    named = host_and_port(host, at)
    try:
        socket.getaddrinfo(host, at, type=socket.SOCK_STREAM)
    except (OSError, UnicodeError):
        machine.defect = f"the host name {host} is unknown"
        return
    machine.resolves, machine.defect = True, f"{named} did not answer within {_LIMIT_S:g} s"
    try:
        socket.create_connection((host, at), timeout=_LIMIT_S).close()
        machine.defect = None
    except OSError as error:
        machine.defect = f"{named} cannot be reached ({error.strerror or error})"
