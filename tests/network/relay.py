"""A way that takes time: a TCP relay that holds back what it passes on."""

from __future__ import annotations

import socket
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress


class Relay:
    """Passes connections to its ``port`` on; each piece of data waits ``delay_s`` there and back."""

    def __init__(self, host: str, port: int) -> None:
        self.delay_s = 0.0
        self._there = host, port
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.port = int(self._listener.getsockname()[1])
        self._links: list[socket.socket] = []
        threading.Thread(target=self._serve, daemon=True).start()

    def close(self) -> None:
        for link in (self._listener, *self._links):
            with suppress(OSError):
                link.shutdown(socket.SHUT_RDWR)
            link.close()

    def _serve(self) -> None:
        with suppress(OSError):
            while True:
                here, _ = self._listener.accept()
                there = socket.create_connection(self._there)
                self._links += [here, there]
                for pair in ((here, there), (there, here)):
                    threading.Thread(target=self._pass, args=pair, daemon=True).start()

    def _pass(self, source: socket.socket, sink: socket.socket) -> None:
        with suppress(OSError):
            while data := source.recv(1 << 16):
                time.sleep(self.delay_s)
                sink.sendall(data)


@contextmanager
def delaying_relay(host: str, port: int) -> Iterator[Relay]:
    relay = Relay(host, port)
    try:
        yield relay
    finally:
        relay.close()
