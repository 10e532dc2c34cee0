"""Looks, before a run begins, whether names resolve and machines accept connections; logs in nowhere."""

from __future__ import annotations

import socket
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial

from digirl_dist.errors import WorkerError
from digirl_dist.plain_text import host_and_port
from digirl_dist.settings import SshSettings, SshTransport
from digirl_dist.ssh.carrier import carrier
from digirl_dist.ssh.connection import Address
from digirl_dist.ssh.openssh import route
from digirl_dist.ssh.user_config import options, read, told

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
    way = partial(_by_openssh, settings) if carrier(settings) is SshTransport.openssh else _known
    found = [Reached(host) for host, _ in hosts]
    threads = [
        threading.Thread(target=_look, args=(each, port, way), daemon=True)  # a resolver cannot be interrupted
        for each, (_, port) in zip(found, hosts, strict=True)
    ]
    for thread in threads:
        thread.start()
    deadline = time.monotonic() + _LIMIT_S
    for thread in threads:
        thread.join(max(0.0, deadline - time.monotonic()))
    return found


def _look(machine: Reached, port: int | None, way: Callable[[str, int | None], Mapping[str, str]]) -> None:
    try:
        known = way(machine.host, port)
    except WorkerError as error:
        machine.resolves, machine.defect = True, str(error)
        return
    if known.get("proxyjump", "none") != "none" or known.get("proxycommand", "none") != "none":
        machine.resolves, machine.defect = True, None
        return
    host, at = known.get("hostname", machine.host), port or int(known.get("port", 22))
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


def _by_openssh(settings: SshSettings, host: str, port: int | None) -> Mapping[str, str]:
    return route(Address(host, host, port), settings)


def _known(host: str, port: int | None) -> Mapping[str, str]:
    with told(host):
        return options(read(), host)
