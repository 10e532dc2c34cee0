"""A TCP port of this machine on which nobody listens."""

import socket


def free_port() -> int:
    """Somebody else may take it before the caller does: use it at once."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])
