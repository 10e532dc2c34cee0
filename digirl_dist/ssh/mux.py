"""Sessions on a connection that OpenSSH's ``ssh`` shares: the client's side of its multiplexing socket.

The messages are those of PROTOCOL.mux in OpenSSH's sources, version 4, unchanged since 2010. A session gets three
pipes; what a command reads and writes goes through them and ``ssh``, never through this process's interpreter.
"""

from __future__ import annotations

import errno
import os
import select
import socket
import struct
import threading
import time
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from digirl_dist.child_process import widen

_VERSION = 4
_HELLO, _NEW_SESSION = 0x00000001, 0x10000002
_DENIED, _FAILED, _EXIT, _OPENED = 0x80000002, 0x80000003, 0x80000004, 0x80000006
_NO_ESCAPE = 0xFFFFFFFF
_LARGEST = 1 << 16
_SLICE_S = 0.5
_FIRST_PIPE_BYTES, _PIPE_BYTES = 1 << 16, 1 << 20
"""What a pipe of Linux holds at first, and once it has been found full."""
_DRAIN_S = 0.0005
"""A pipe that has little room is left alone so long: fewer turns of this process, and still no gap in the stream."""


class SessionRefused(Exception):
    """The other machine, or ``ssh``, refuses a session; the reason is its word for it."""


class PipeEnd:
    """This process's end of a pipe. It never blocks, and it can be closed while another thread uses it."""

    def __init__(self, number: int) -> None:
        os.set_blocking(number, False)
        self._number: int | None = number
        self._lock = threading.Lock()

    @property
    def is_closed(self) -> bool:
        return self._number is None

    def read(self, size: int, wait_s: float, also: PipeEnd | None = None) -> bytes | None:
        """Returns what has come, ``b""`` at the end, None if nothing comes in that time or ``also`` can be read."""
        with self._lock:
            if self._number is None:
                return b""
            ends = [self._number, *([also._number] if also and also._number is not None else [])]
            _wait(ends, select.POLLIN, wait_s)
            try:
                data = os.read(self._number, size)
            except BlockingIOError:
                return None
            if len(data) == _FIRST_PIPE_BYTES:
                widen(self._number, _PIPE_BYTES)
            return data

    def write(self, data: memoryview, wait_s: float) -> int:
        """Returns how many bytes were taken; 0 if none were in that time. Raises OSError if nobody reads any more."""
        with self._lock:
            if self._number is None:
                raise BrokenPipeError("closed")
            _wait([self._number], select.POLLOUT, wait_s)
            try:
                return os.write(self._number, data)
            except BlockingIOError:
                return 0

    def splice(self, source: int, offset: int, size: int, wait_s: float) -> int:
        """Does as ``write`` with bytes of a file, which the kernel hands on. Raises EOFError at the file's end."""
        with self._lock:
            if self._number is None:
                raise BrokenPipeError("closed")
            widen(self._number, _PIPE_BYTES)
            _wait([self._number], select.POLLOUT, wait_s)
            try:
                moved = _hand_on(source, offset, size, self._number)
            except BlockingIOError:
                return 0
        if not moved:
            raise EOFError
        if moved < min(size, _PIPE_BYTES // 4):
            time.sleep(_DRAIN_S)
        return moved

    def close(self) -> None:
        """Waits for another thread's call to end: at once where the other end is closed, else when its time is over."""
        with self._lock:
            if self._number is not None:
                os.close(self._number)
            self._number = None


def _hand_on(source: int, offset: int, size: int, pipe: int) -> int:
    if hasattr(os, "splice"):
        try:
            return os.splice(source, pipe, size, offset_src=offset)
        except OSError as error:
            if error.errno != errno.EINVAL:  # a file system that cannot
                raise
    return os.write(pipe, os.pread(source, min(size, _PIPE_BYTES), offset))


def _wait(ends: list[int], for_what: int, wait_s: float) -> None:
    poll = select.poll()
    for end in ends:
        poll.register(end, for_what)
    poll.poll(wait_s * 1000)


@dataclass(frozen=True)
class Pipes:
    """This process's ends of a command's streams."""

    stdin: PipeEnd
    stdout: PipeEnd
    stderr: PipeEnd

    @property
    def are_closed(self) -> bool:
        return self.stdout.is_closed and self.stderr.is_closed

    def close(self) -> None:
        for end in (self.stdin, self.stdout, self.stderr):
            end.close()


def open_pipes() -> tuple[tuple[int, int, int], Pipes]:
    """Returns a command's ends of its stdin, stdout and stderr, and this process's. Raises OSError."""
    ends: list[int] = []
    try:
        for _ in range(3):
            ends += os.pipe()
    except OSError:
        for end in ends:
            os.close(end)
        raise
    stdin, to_stdin, from_stdout, stdout, from_stderr, stderr = ends
    return (stdin, stdout, stderr), Pipes(PipeEnd(to_stdin), PipeEnd(from_stdout), PipeEnd(from_stderr))


class Session:
    """A command on a shared connection, and how it ended."""

    def __init__(self, path: Path, command: str, timeout_s: float) -> None:
        """Raises SessionRefused, or OSError if the connection is gone or nothing answers within ``timeout_s``."""
        self._lock = threading.Lock()
        self._received = b""
        self._status: int | None = None
        self._is_over = False
        self._socket = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        try:
            self._socket.settimeout(timeout_s)
            self._socket.connect(str(path))
            self.pipes = self._open(command)
        except BaseException:
            self._socket.close()
            raise

    def exit_status(self, wait_s: float = 0.0) -> int | None:
        """Returns the status; None while the command runs, or if the connection or a signal ended it."""
        deadline = time.monotonic() + wait_s
        while True:
            left_s = max(0.0, deadline - time.monotonic())
            self._listen(min(left_s, _SLICE_S))
            if self._is_over or not left_s:
                return self._status

    @property
    def is_over(self) -> bool:
        """True once ``exit_status`` has seen the end of the session."""
        return self._is_over

    def close(self) -> None:
        """Ends the session; what the command still runs, runs on."""
        with suppress(OSError):
            self._socket.shutdown(socket.SHUT_RDWR)
        with self._lock:
            self._socket.close()
            self._is_over = True
        self.pipes.close()

    def _listen(self, wait_s: float) -> None:
        with self._lock:
            if self._is_over:
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
                self._is_over = True

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
