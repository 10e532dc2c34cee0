"""A TCP relay on the way to a server, which a test can slow down, stop or cut."""

from __future__ import annotations

import socket
import threading
import time
from contextlib import suppress
from pathlib import Path

from digirl_dist.ssh.connection import Address

_CHUNK = 1 << 16


class Relay:
    """Passes connections on to ``target``. ``rate`` limits each direction of each connection, in bytes per second."""

    def __init__(self, target: Address, folder: Path, rate: float = float("inf")) -> None:
        self._target = (target.host, int(target.port or 22))
        self._rate = rate
        self._flows = threading.Event()
        self._flows.set()
        self._left: int | None = None
        self._sockets: list[socket.socket] = []
        self._listener = socket.create_server(("127.0.0.1", 0))
        port = self._listener.getsockname()[1]
        keys = folder / f"known_hosts-{port}"
        assert target.known_hosts is not None
        keys.write_text(Path(target.known_hosts).read_text().replace(f":{self._target[1]} ", f":{port} "))
        self.address = Address(target.name, "127.0.0.1", port, target.user, target.key, str(keys))
        threading.Thread(target=self._accept, daemon=True).start()

    def stop_after(self, count: int) -> None:
        """Nothing gets through any more once so many further bytes have gone to the server; connections stand."""
        self._left = count

    @property
    def stopped(self) -> bool:
        return not self._flows.is_set()

    def go_on(self) -> None:
        self._left = None
        self._flows.set()

    def cut(self) -> None:
        """End every connection; new ones are accepted."""
        for one in self._sockets:
            with suppress(OSError):
                one.shutdown(socket.SHUT_RDWR)
        self._sockets.clear()

    def close(self) -> None:
        self._listener.close()
        self.go_on()
        self.cut()

    def __enter__(self) -> Relay:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def _accept(self) -> None:
        with suppress(OSError):
            while True:
                near, _ = self._listener.accept()
                far = socket.create_connection(self._target)
                self._sockets += [near, far]
                threading.Thread(target=self._pass, args=[near, far, True], daemon=True).start()
                threading.Thread(target=self._pass, args=[far, near, False], daemon=True).start()

    def _pass(self, source: socket.socket, sink: socket.socket, up: bool) -> None:
        with suppress(OSError):
            while data := source.recv(_CHUNK):
                self._flows.wait()
                sink.sendall(data)
                time.sleep(len(data) / self._rate)
                if up and self._left is not None:
                    self._left -= len(data)
                    if self._left <= 0:
                        self._flows.clear()
        for one in (source, sink):
            with suppress(OSError):
                one.shutdown(socket.SHUT_RDWR)
