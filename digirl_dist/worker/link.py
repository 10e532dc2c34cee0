"""The worker program's end of the control channel: a Unix socket in its folder, one host at a time."""

from __future__ import annotations

import os
import queue
import socket
import threading
import time
from collections.abc import Callable
from typing import Any

from digirl_dist.job import JobFolder, decode, encode
from digirl_dist.tasks import Json

HEARTBEAT_S = 2.0


class Link:
    """Receives lines in a thread of its own, so that heartbeats go out while the program's loop is busy.

    ``fileno`` is readable when ``received`` has something. The newest host wins: an older connection is closed.
    """

    def __init__(self, folder: JobFolder, doing: Callable[[], dict[str, Json]]) -> None:
        self.last_heard = time.monotonic()
        self._doing = doing
        self._messages: queue.SimpleQueue[dict[str, Any]] = queue.SimpleQueue()
        self._wake_read, self._wake_write = os.pipe()
        os.set_blocking(self._wake_read, False)
        os.set_blocking(self._wake_write, False)
        self._writing = threading.Lock()
        self._host: socket.socket | None = None
        self._listener = _listen(folder)
        threading.Thread(target=self._accept, name="link-accept", daemon=True).start()
        threading.Thread(target=self._beat, name="link-heartbeat", daemon=True).start()

    def fileno(self) -> int:
        return self._wake_read

    def received(self) -> list[dict[str, Any]]:
        """Messages that arrived since the last call, in order."""
        try:
            os.read(self._wake_read, 65536)
        except BlockingIOError:
            pass
        messages = []
        while True:
            try:
                messages.append(self._messages.get_nowait())
            except queue.Empty:
                return messages

    def send(self, kind: str, **content: Json) -> None:
        """To the host if there is one; what matters is told again when it comes back."""
        with self._writing:
            if self._host is None:
                return
            try:
                self._host.sendall(encode(kind, **content))
            except OSError:
                self._hang_up(self._host)

    def close(self) -> None:
        self._listener.close()
        with self._writing:
            if self._host is not None:
                self._hang_up(self._host)

    def _accept(self) -> None:
        while True:
            try:
                host, _ = self._listener.accept()
            except OSError:
                return
            host.settimeout(10.0)  # a host that takes no bytes for that long is gone
            with self._writing:
                if self._host is not None:
                    self._hang_up(self._host)
                self._host = host
            threading.Thread(target=self._read, args=(host,), name="link-read", daemon=True).start()

    def _read(self, host: socket.socket) -> None:
        lines = socket.socket(fileno=os.dup(host.fileno()))
        lines.settimeout(None)
        with lines, lines.makefile("rb") as stream:
            try:
                for line in stream:
                    self.last_heard = time.monotonic()
                    self._receive(decode(line))
            except (OSError, ValueError):
                pass
        with self._writing:
            self._hang_up(host)

    def _receive(self, message: dict[str, Any]) -> None:
        if message["type"] == "ping":
            return
        self._messages.put(message)
        try:
            os.write(self._wake_write, b"!")
        except BlockingIOError:
            pass  # it is awake already

    def _beat(self) -> None:
        while True:
            time.sleep(HEARTBEAT_S)
            self.send("alive", **self._doing())

    def _hang_up(self, host: socket.socket) -> None:
        if self._host is host:
            self._host = None
        try:
            host.shutdown(socket.SHUT_RDWR)
        except OSError:
            pass
        host.close()


def _listen(folder: JobFolder) -> socket.socket:
    """Bind by a relative path: the program's working directory is its folder."""
    listener = socket.socket(socket.AF_UNIX)
    try:
        os.unlink(folder.socket)
    except FileNotFoundError:
        pass
    previous = os.umask(0o077)
    try:
        listener.bind(folder.socket)
    finally:
        os.umask(previous)
    listener.listen(4)
    return listener
