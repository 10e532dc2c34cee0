"""A TCP relay between host and worker, which can cut connections, or keep them open and pass nothing on."""

from __future__ import annotations

import select
import socket
import struct
import threading
from contextlib import suppress

_CHUNK = 1 << 16
_LOOK_S = 0.5


class Relay:
    """Listens on a free loopback port and passes everything on to ``target`` port until told otherwise."""

    def __init__(self, target: int) -> None:
        self._target = target
        self._links: list[_Link] = []
        self._open = True
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.port = int(self._listener.getsockname()[1])
        threading.Thread(target=self._accept, name="relay", daemon=True).start()

    def cut(self) -> None:
        """Reset every connection, on both sides."""
        for link in self._links:
            link.reset()
        self._links = []

    def swallow(self, from_host: bool, from_worker: bool) -> None:
        """From now on the present connections stay open, but what comes on them is lost."""
        for link in self._links:
            link.swallowed = (from_host, from_worker)

    def refuse(self, refuses: bool) -> None:
        """Whether new connections are reset at once."""
        self._open = not refuses

    def close(self) -> None:
        self._listener.close()
        self.cut()

    def _accept(self) -> None:
        while True:
            try:
                host, _ = self._listener.accept()
            except OSError:  # closed: the relay is taken down
                return
            self._links = [link for link in self._links if not link.over]
            try:
                worker = socket.create_connection(("127.0.0.1", self._target), 5.0) if self._open else None
            except OSError:  # the server is down: as it would be without a relay
                worker = None
            if worker is None:
                _reset(host)
            else:
                self._links.append(_Link(host, worker))


class _Link:
    """One connection."""

    def __init__(self, host: socket.socket, worker: socket.socket) -> None:
        self.swallowed = (False, False)
        self.over = False
        self._sides = (host, worker)
        threading.Thread(target=self._pass, name="relay-link", daemon=True).start()

    def reset(self) -> None:
        self.over = True
        for side in self._sides:
            _reset(side)

    def _pass(self) -> None:
        host, worker = self._sides
        try:
            while not self.over:
                for source in select.select([host, worker], [], [], _LOOK_S)[0]:
                    data = source.recv(_CHUNK)
                    lost = self.swallowed[source is worker]
                    if not data and not lost:
                        return
                    if not data:  # half-open: the other side is not told; wait for the cut that ends it
                        self._drain(worker if source is host else host)
                        return
                    if not lost:
                        (worker if source is host else host).sendall(data)
        except (OSError, ValueError):
            pass  # either side is gone, or was reset by us
        finally:
            self.over = True
            host.close()
            worker.close()

    def _drain(self, side: socket.socket) -> None:
        while not self.over and (not select.select([side], [], [], _LOOK_S)[0] or side.recv(_CHUNK)):
            pass


def _reset(side: socket.socket) -> None:
    """Close with RST, as a machine does that knows nothing of the connection."""
    with suppress(OSError):  # closed already
        side.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        side.shutdown(socket.SHUT_RDWR)
    side.close()
