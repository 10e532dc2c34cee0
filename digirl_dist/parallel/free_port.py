"""Finds a TCP port of this machine on which nobody listens."""

import socket


def free_port() -> int:
    """Returns a free port of the loopback interface. Another process may take it: use it at once."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])
