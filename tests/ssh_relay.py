"""The relay of the chaos runs on the way to a test's SSH server."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path

from chaos.relay import Relay
from digirl_dist.ssh.connection import Address


@contextmanager
def relayed(target: Address, folder: Path) -> Iterator[tuple[Relay, Address]]:
    """A relay, and the address by which its server is reached through it."""
    port = int(target.port or 22)
    assert target.known_hosts is not None
    key = Path(target.known_hosts).read_text().split(" ", 1)[1]
    with Relay(port, target.host) as relay:
        known = folder / f"known_hosts-{relay.port}"
        known.write_text(f"[127.0.0.1]:{relay.port} {key}")
        yield relay, replace(target, host="127.0.0.1", port=relay.port, known_hosts=str(known))
