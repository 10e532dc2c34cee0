"""Sessions on a connection that OpenSSH's ``ssh`` shares: the client's side of its multiplexing socket.

The messages are those of PROTOCOL.mux in OpenSSH's sources, version 4, unchanged since 2010. A session gets three
pipes; what a command reads and writes goes through them and ``ssh``, never through this process's interpreter.
"""

from __future__ import annotations

import os
import socket
import struct
import threading
import time
from contextlib import suppress
from pathlib import Path

from digirl_dist.errors import on_error
from digirl_dist.ssh.piped import Pipes, open_pipes

_VERSION = 4
_HELLO, _NEW_SESSION = 0x00000001, 0x10000002
_DENIED, _FAILED, _EXIT, _OPENED = 0x80000002, 0x80000003, 0x80000004, 0x80000006
_NO_ESCAPE = 0xFFFFFFFF
_LARGEST = 1 << 16
_SLICE_S = 0.5


class SessionRefused(Exception):
    """The other machine, or ``ssh``, refuses a session; the reason is its word for it."""


class MuxSession:
    """A command on a shared connection, and how it ended."""

    def __init__(self, path: Path, command: str, timeout_s: float) -> None:
        """Raises SessionRefused, or OSError if the connection is gone or nothing answers within ``timeout_s``."""
        self._lock = threading.Lock()
        self._received = b""
        self._status: int | None = None
        self.is_over = False
        """True once ``exit_status`` has seen the end of the session."""
        self._socket = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        with on_error(self._socket.close):
            self._socket.settimeout(timeout_s)
            self._socket.connect(str(path))
            self.pipes = self._open(command)

    def exit_status(self, wait_s: float = 0.0) -> int | None:
        """Returns the status; None while the command runs, or if the connection or a signal ended it."""
        deadline = time.monotonic() + wait_s
        while True:
            left_s = max(0.0, deadline - time.monotonic())
            self._listen(min(left_s, _SLICE_S))
            if self.is_over or not left_s:
                return self._status

    def close(self) -> None:
        """Ends the session; what the command still runs, runs on."""
        with suppress(OSError):
            self._socket.shutdown(socket.SHUT_RDWR)
        with self._lock:
            self._socket.close()
            self.is_over = True
        self.pipes.close()

    def _listen(self, wait_s: float) -> None:
        with self._lock:
            if self.is_over:
                return
            self._socket.settimeout(wait_s)
            try:
                while True:
                    kind, body = self._receive()
                    if kind == _EXIT:
                        self._status = struct.unpack_from(">I", body, 4)[0]
            except (TimeoutError, BlockingIOError):
                pass
            except OSError:
                self.is_over = True

    def _open(self, command: str) -> Pipes:
        self._send(struct.pack(">II", _HELLO, _VERSION))
        self._receive()
        theirs, ours = open_pipes()
        try:
            terminal_x11_agent_subsystem = struct.pack(">IIII", 0, 0, 0, 0)
            request = struct.pack(">II", _NEW_SESSION, 0) + _string("") + terminal_x11_agent_subsystem
            self._send(request + struct.pack(">I", _NO_ESCAPE) + _string("") + _string(command))
            for end in theirs:
                socket.send_fds(self._socket, [b"\0"], [end])
            kind, body = self._receive()
            if kind != _OPENED:
                reason = body[8:] if kind in (_DENIED, _FAILED) else b"an answer of an unknown kind"
                raise SessionRefused(reason.decode(errors="replace"))
        except BaseException:
            ours.close()
            raise
        finally:
            for end in theirs:
                os.close(end)
        return ours

    def _send(self, message: bytes) -> None:
        self._socket.sendall(struct.pack(">I", len(message)) + message)

    def _receive(self) -> tuple[int, bytes]:
        """Returns the kind and body of the next message; a message that is not complete yet is kept."""
        size = struct.unpack_from(">I", self._take(4))[0]
        if not 4 <= size <= _LARGEST:
            raise OSError("ssh sent a message of an impossible length")
        message, self._received = self._take(4 + size)[: 4 + size], self._received[4 + size :]
        return struct.unpack_from(">I", message, 4)[0], message[8:]

    def _take(self, size: int) -> bytes:
        while len(self._received) < size:
            more = self._socket.recv(_LARGEST)
            if not more:
                raise ConnectionResetError("ssh ended")
            self._received += more
        return self._received


def _string(text: str) -> bytes:
    data = text.encode()
    return struct.pack(">I", len(data)) + data
