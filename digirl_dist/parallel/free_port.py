"""Finds a TCP port of this machine on which nobody listens."""

import random
import socket

from digirl_dist.errors import RankError

_PORTS = range(20_000, 32_768)
"""Below those from which kernels give a port to whoever connects, so that no connection takes it meanwhile."""


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
