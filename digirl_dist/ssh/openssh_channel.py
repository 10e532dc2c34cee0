"""A command on a connection that OpenSSH carries."""

from __future__ import annotations

import os
import subprocess
import threading
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from functools import partial
from typing import Protocol

from digirl_dist.child_process import reap
from digirl_dist.errors import LinkLostError
from digirl_dist.ssh import processes
from digirl_dist.ssh.channel import LINK_END_S, READ_BYTES, Allowance, Channel, FilePart
from digirl_dist.ssh.mux import Pipes, open_pipes

_SIGNALLED = -1
_END_S = 5.0


class PipedSession(Protocol):
    """A command that another program carries: see ``mux.Session`` and ``ProcessSession``."""

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


class OpenSshChannel(Channel):
    """A ``Channel`` over pipes to an ``ssh`` that encrypts outside this process."""

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
