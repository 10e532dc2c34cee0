"""Commands whose streams are pipes to another program, which carries them: ``ssh`` or ``srun``."""

from __future__ import annotations

import errno
import os
import select
import subprocess
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from typing import Protocol

from digirl_dist.child_process import reap, widen
from digirl_dist.errors import LinkLostError
from digirl_dist.ssh import processes
from digirl_dist.ssh.channel import LINK_END_S, READ_BYTES, Allowance, Channel, FilePart

_SIGNALLED = -1
_END_S = 5.0
_FIRST_PIPE_BYTES, _PIPE_BYTES = 1 << 16, 1 << 20
"""What a pipe of Linux holds at first, and once it has been found full."""
_DRAIN_S = 0.0005
"""A pipe that has little room is left alone so long: fewer turns of this process, and still no gap in the stream."""


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


class PipedSession(Protocol):
    """A command that another program carries: see ``mux.MuxSession`` and ``ProcessSession``."""

    pipes: Pipes

    def exit_status(self, wait_s: float = 0.0) -> int | None: ...

    @property
    def is_over(self) -> bool: ...

    def close(self) -> None: ...


class ProcessSession:
    """A command that a process of this machine carries, such as ``srun``: its pipes, and how it ended."""

    most_status = 255

    def __init__(self, command: Sequence[str], environ: Mapping[str, str]) -> None:
        theirs, self.pipes = open_pipes()
        try:
            self._process = processes.start_tied(command, *theirs, env=environ)
        except BaseException:
            self.pipes.close()
            raise
        finally:
            for end in theirs:
                os.close(end)

    def exit_status(self, wait_s: float = 0.0) -> int | None:
        """Returns the command's status; None while it runs, or if a signal ended it."""
        with suppress(subprocess.TimeoutExpired):
            self._process.wait(wait_s)
        code = self._process.poll()
        return code if code is not None and 0 <= code <= self.most_status else None

    @property
    def is_over(self) -> bool:
        return self._process.poll() is not None

    def close(self) -> None:
        """Ends the process."""
        if not self.is_over:
            self._process.terminate()
            threading.Thread(target=reap, args=[self._process, _END_S], name="session-end", daemon=True).start()
        self.pipes.close()


class PipedSessions:
    """The sessions of a connection, which end with it: nothing else closes pipes that their users have forgotten."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._open: list[PipedSession] | None = []

    def add(self, session: PipedSession) -> None:
        """Raises OSError, and closes the session, if ``close`` came first."""
        with self._lock:
            if self._open is not None:
                self._open = [*(one for one in self._open if not one.pipes.are_closed), session]
                return
        session.close()
        raise ConnectionAbortedError("it was closed meanwhile")

    def close(self) -> None:
        with self._lock:
            sessions, self._open = self._open or [], None
        for session in sessions:
            session.close()


class PipedChannel(Channel):
    """A ``Channel`` over the pipes of a session."""

    packet_bytes = 1 << 16

    def __init__(
        self,
        session: PipedSession,
        worker: str,
        command: str,
        stall_s: float,
        slowest: float,
        link_ended: Callable[[float], str | None],
    ) -> None:
        """``link_ended`` waits so many seconds and returns what ended the link, None while it lives."""
        super().__init__(worker, command, stall_s, slowest)
        self._session = session
        self._pipes = session.pipes
        self._link_ended = link_ended

    def close_input(self) -> None:
        self._pipes.stdin.close()

    @property
    def exit_status(self) -> int | None:
        status = self._session.exit_status()
        return _SIGNALLED if status is None and self._session.is_over else status

    def close(self) -> None:
        self._session.close()

    def _offer(self, view: memoryview, wait_s: float) -> int:
        try:
            return self._pipes.stdin.write(view, wait_s)
        except OSError as error:
            raise self.ended() from error

    def _send_file(self, part: FilePart, allowance: Allowance) -> int:
        return self._send(partial(self._offer_file, part), allowance)

    def _offer_file(self, part: FilePart, wait_s: float) -> int:
        try:
            return self._pipes.stdin.splice(part.file.fileno(), part.offset, part.size, wait_s)
        except OSError as error:
            raise self.ended() from error

    def _take_in(self, wait_s: float) -> bytes | None:
        return self._pipes.stdout.read(READ_BYTES, wait_s, also=self._pipes.stderr)

    def _take_in_stderr(self) -> bytes:
        return self._pipes.stderr.read(READ_BYTES, wait_s=0.0) or b""

    def _wait_for_end(self, timeout_s: float) -> bool:
        return self._session.exit_status(timeout_s) is not None or self._session.is_over

    def _lost(self) -> LinkLostError | None:
        """The pipes of a broken link close a moment before ``ssh`` ends."""
        if self._session.exit_status(LINK_END_S) is not None:
            return None
        why = self._link_ended(LINK_END_S if self._session.is_over else 0.0)
        return self._link_lost(why) if why else None
