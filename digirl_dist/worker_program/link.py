"""The worker program's end of the control channel."""

from __future__ import annotations

import math
import os
import queue
import select
import socket
import threading
import time
from abc import ABC, abstractmethod
from collections.abc import Callable
from contextlib import suppress

from digirl_dist.errors import ProtocolError
from digirl_dist.protocol.job_folder import JobFolder
from digirl_dist.protocol.messages import (
    MOST_HOST_BYTES,
    Broken,
    Heartbeat,
    HostMessage,
    Ping,
    WorkerMessage,
    decode_host_message,
    encode,
    shortened,
)

HEARTBEAT_S = 2.0
_REFUSED_S = 0.5
_TAKES_S = 10.0
"""A host that takes no bytes for that long is gone."""


class Link(ABC):
    """What the host says, until the program's loop takes it, and the way to answer it."""

    def __init__(self) -> None:
        self.last_heard = time.monotonic()
        """Monotonic time at which the host was heard last."""
        self._messages: queue.SimpleQueue[HostMessage] = queue.SimpleQueue()
        self._wake_read, self._wake_write = os.pipe()
        os.set_blocking(self._wake_read, False)
        os.set_blocking(self._wake_write, False)

    def fileno(self) -> int:
        """Returns a descriptor that is readable when ``received`` has something."""
        return self._wake_read

    def received(self) -> list[HostMessage]:
        """Messages that arrived since the last call, in order."""
        with suppress(BlockingIOError):
            os.read(self._wake_read, 65536)
        messages = []
        while True:
            try:
                messages.append(self._messages.get_nowait())
            except queue.Empty:
                return messages

    def receive(self, line: bytes) -> None:
        """Called by what listens to the host, in a thread of its own; what is no message is answered with Broken."""
        self.last_heard = time.monotonic()
        try:
            message = decode_host_message(line)
        except ProtocolError as error:
            self.send(Broken("hear", shortened(str(error))))
            return
        if isinstance(message, Ping):
            return
        self._messages.put(message)
        with suppress(BlockingIOError):  # it is awake already
            os.write(self._wake_write, b"!")

    @abstractmethod
    def start(self, state: Callable[[], Heartbeat]) -> None:
        """Serves a host; ``state`` makes the heartbeats that it gets."""

    @abstractmethod
    def send(self, message: WorkerMessage, attached: bytes = b"") -> None:
        """Sends to the host if there is one; what matters is told again when it comes back.

        Raises ProtocolError for what a host would refuse.
        """

    @abstractmethod
    def close(self) -> None: ...


class SocketLink(Link):
    """A Unix socket in the program's folder, for one host at a time: the newest wins, an older connection is closed.

    Lines are received in a thread, so that heartbeats go out while the program's loop is busy.
    """

    def __init__(self, folder: JobFolder) -> None:
        super().__init__()
        self._writing = threading.Lock()
        self._host: socket.socket | None = None
        self._listener = _listen(folder)
        self._path = folder.root / folder.socket
        self._inode = self._path.stat().st_ino

    def start(self, state: Callable[[], Heartbeat]) -> None:
        threading.Thread(target=self._accept, name="link-accept", daemon=True).start()
        threading.Thread(target=beat, args=(self, state), name="link-heartbeat", daemon=True).start()

    def send(self, message: WorkerMessage, attached: bytes = b"") -> None:
        said = encode(message, attached)
        with self._writing:
            if self._host is None:
                if not self._can_be_reached():
                    self.last_heard = -math.inf  # no host will ever come
                return
            try:
                _send(self._host, said)
            except OSError:
                self._hang_up(self._host)

    def close(self) -> None:
        self._listener.close()
        with self._writing:
            if self._host is not None:
                self._hang_up(self._host)

    def _can_be_reached(self) -> bool:
        """Returns whether the socket still lies where hosts look for it: somebody may clean up there."""
        try:
            return self._path.stat().st_ino == self._inode
        except OSError:
            return False

    def _accept(self) -> None:
        while True:
            try:
                host, _ = self._listener.accept()
                lines = host.dup()
            except OSError:  # the end, or this process has no descriptor to spare for now
                if self._listener.fileno() < 0:
                    return
                time.sleep(_REFUSED_S)
                continue
            with self._writing:
                if self._host is not None:
                    self._hang_up(self._host)
                self._host = host
            threading.Thread(target=self._read, args=(host, lines), name="link-read", daemon=True).start()

    def _read(self, host: socket.socket, lines: socket.socket) -> None:
        with suppress(OSError, ValueError), lines, lines.makefile("rb") as stream:
            while (line := stream.readline(MOST_HOST_BYTES + 1)) and self._host is host:
                self.receive(line)  # what it said before another one came is for nobody
        with self._writing:
            self._hang_up(host)

    def _hang_up(self, host: socket.socket) -> None:
        if self._host is host:
            self._host = None
        with suppress(OSError):
            host.shutdown(socket.SHUT_RDWR)
        host.close()


def _send(host: socket.socket, data: bytes) -> None:
    """Sends all of it, however long a slow link takes for a large image. Raises OSError for a host that is gone.

    Never waits in ``send``: a time limit of the socket would be one for the thread that reads from it too.
    """
    taken, view = select.poll(), memoryview(data)
    taken.register(host, select.POLLOUT)
    while view:
        if not taken.poll(_TAKES_S * 1000):
            raise TimeoutError
        with suppress(BlockingIOError):
            view = view[host.send(view, socket.MSG_DONTWAIT) :]


def beat(link: Link, state: Callable[[], Heartbeat]) -> None:
    """Tells the host now and then that we are here, for as long as this process lives."""
    while True:
        slept_at = time.monotonic()
        time.sleep(HEARTBEAT_S)
        if time.monotonic() - slept_at > 2 * HEARTBEAT_S:
            link.last_heard = time.monotonic()  # this process was held up: what came meanwhile is still to be read
        try:
            link.send(state())
        except ProtocolError as error:  # a defect of ours: without heartbeats nobody would learn of it
            link.send(Broken("heartbeat", shortened(str(error))))


def _listen(folder: JobFolder) -> socket.socket:
    """Bind by a relative path: the program's working directory is its folder."""
    listener = socket.socket(socket.AF_UNIX)
    with suppress(FileNotFoundError):
        os.unlink(folder.socket)
    previous = os.umask(0o077)
    try:
        listener.bind(folder.socket)
    finally:
        os.umask(previous)
    listener.listen(4)
    return listener
