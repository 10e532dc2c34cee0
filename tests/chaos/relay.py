"""A TCP relay in front of a server, which can slow down, stop, cut or swallow its connections."""

from __future__ import annotations

import math
import socket
import struct
import threading
import time
from contextlib import suppress

_CHUNK = 1 << 16


class Relay:
    """Listens on a free loopback port and forwards everything to ``port`` of ``host``."""

    def __init__(self, port: int, host: str = "127.0.0.1") -> None:
        self.rate = math.inf
        """Limit of each direction of each connection, in bytes per second."""
        self.delay_s = 0.0
        """Delay of each piece of data in both directions, in seconds."""
        self._target = (host, port)
        self._links: list[_Link] = []
        self._changing = threading.Lock()
        """Else a cut may lose sight of a connection that is just accepted, and no later cut would end it."""
        self._open = True
        self._flows = threading.Event()
        self._flows.set()
        self._left = math.inf
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.port = int(self._listener.getsockname()[1])
        threading.Thread(target=self._accept, name="relay", daemon=True).start()

    def cut(self) -> None:
        """Resets every connection, on both sides."""
        with self._changing:
            links, self._links = self._links, []
        for link in links:
            link.reset()

    def swallow(self, from_host: bool, from_worker: bool) -> None:
        """Keeps the current connections open but discards their data in the given directions."""
        for link in self._links:
            link.swallowed = (from_host, from_worker)

    def refuse(self, refuses: bool) -> None:
        """Sets whether new connections are reset at once."""
        self._open = not refuses

    def stop_after(self, count: int) -> None:
        """Stops all data after ``count`` further bytes to the server; connections stay open."""
        self._left = count

    @property
    def stopped(self) -> bool:
        return not self._flows.is_set()

    def go_on(self) -> None:
        self._left = math.inf
        self._flows.set()

    def close(self) -> None:
        self._listener.close()
        self.go_on()
        self.cut()

    def __enter__(self) -> Relay:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def pass_on(self, data: bytes, sink: socket.socket, to_server: bool) -> None:
        self._flows.wait()
        time.sleep(self.delay_s)
        sink.sendall(data)
        time.sleep(len(data) / self.rate)
        if to_server:
            self._left -= len(data)
            if self._left <= 0:
                self._flows.clear()

    def _accept(self) -> None:
        while True:
            try:
                host, _ = self._listener.accept()
            except OSError:  # the relay was closed
                return
            try:
                worker = socket.create_connection(self._target, 5.0) if self._open else None
            except OSError:  # the server is down: reset, as it would without a relay
                worker = None
            if worker is None:
                _reset(host)
            else:
                worker.settimeout(None)
                with self._changing:
                    open_ones = [link for link in self._links if not link.over]
                    self._links = [*open_ones, _Link(self, host, worker)]


class _Link:
    """One connection."""

    def __init__(self, relay: Relay, host: socket.socket, worker: socket.socket) -> None:
        self.swallowed = (False, False)
        """Whether data from the host, and from the worker, is discarded."""
        self.over = False
        self._relay = relay
        self._sides = (host, worker)
        for way in (0, 1):
            threading.Thread(target=self._pass, args=[way], name="relay-link", daemon=True).start()

    def reset(self) -> None:
        self.over = True
        for side in self._sides:
            _reset(side)

    def _pass(self, way: int) -> None:
        """Forwards data in one direction."""
        source, sink = self._sides[way], self._sides[1 - way]
        with suppress(OSError):  # either side is gone, or was reset here
            while data := source.recv(_CHUNK):
                if not self.swallowed[way]:
                    self._relay.pass_on(data, sink, to_server=way == 0)
            if self.swallowed[way]:  # half-open: the other side learns nothing until the cut
                self.swallowed = (True, True)
                return
        self._close()

    def _close(self) -> None:
        self.over = True
        for side in self._sides:
            with suppress(OSError):  # closed already
                side.shutdown(socket.SHUT_RDWR)
            side.close()


def _reset(side: socket.socket) -> None:
    """Closes a socket with RST, as a machine does that does not know the connection."""
    with suppress(OSError):  # closed already
        side.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        side.shutdown(socket.SHUT_RDWR)
    side.close()
