"""A command on a connection that OpenSSH carries."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable

from digirl_dist.errors import LinkLostError, WorkerError
from digirl_dist.ssh.channel import LINK_END_S, READ_BYTES, SLICE_S, STDERR_KEPT, Channel
from digirl_dist.ssh.mux import Session
from digirl_dist.ssh.wire import HELD_S

_SIGNALLED = -1


class OpenSshChannel(Channel):
    """A ``Channel`` over pipes to an ``ssh`` that encrypts outside this process."""

    packet_bytes = 1 << 16

    def __init__(
        self, session: Session, worker: str, command: str, stall_s: float, link_ended: Callable[[float], str | None]
    ) -> None:
        """``link_ended`` waits so many seconds and returns what ended the link, None while it lives."""
        super().__init__(worker, command)
        self._session = session
        self._pipes = session.pipes
        self._stall_s = stall_s
        self._link_ended = link_ended
        self._stderr = bytearray()
        self._lock = threading.Lock()

    def write(self, data: bytes | bytearray | memoryview) -> None:
        view = memoryview(data).cast("B")
        while view:
            view = view[self._send(view) :]

    def close_input(self) -> None:
        self._pipes.stdin.close()

    def stderr(self) -> bytes:
        self._drain_stderr()
        return bytes(self._stderr)

    @property
    def exit_status(self) -> int | None:
        status = self._session.exit_status()
        return _SIGNALLED if status is None and self._session.is_over else status

    def wait(self, timeout_s: float) -> int:
        status = self._session.exit_status(timeout_s)
        if status is not None:
            return status
        if not self._session.is_over:
            raise self._did_not_end(timeout_s)
        if why := self._lost():
            raise self._link_lost(why)
        return _SIGNALLED

    def ended(self) -> WorkerError:
        self._session.exit_status(self._stall_s)
        why = self._lost()
        return self._link_lost(why) if why else self._ended_with(self.exit_status)

    def close(self) -> None:
        self._session.close()

    def receive_until(self, deadline: float) -> bytes | None:
        while True:
            asked_at = time.monotonic()
            wait_s = max(0.0, min(SLICE_S, deadline - asked_at))
            data = self._pipes.stdout.read(READ_BYTES, wait_s, also=self._pipes.stderr)
            if (held_s := time.monotonic() - asked_at) > HELD_S:
                deadline += held_s
            self._drain_stderr()
            if data == b"" and (why := self._lost()):
                raise self._link_lost(why)
            if data is not None or time.monotonic() >= deadline:
                return data

    def _send(self, view: memoryview) -> int:
        """Returns how many bytes were accepted, at least one."""
        deadline = time.monotonic() + self._stall_s
        while True:
            try:
                if sent := self._pipes.stdin.write(view, SLICE_S):
                    return sent
            except OSError as error:
                raise self.ended() from error
            self._drain_stderr()
            if time.monotonic() >= deadline:
                raise self._stalled(self._stall_s)

    def _drain_stderr(self) -> None:
        with self._lock:
            while more := self._pipes.stderr.read(READ_BYTES, wait_s=0.0):
                self._stderr += more
            del self._stderr[:-STDERR_KEPT]

    def _lost(self) -> str | None:
        """Returns what ended the link if the channel ended with it. Valid once output has ended or sending failed.

        The pipes of a broken link close a moment before ``ssh`` ends.
        """
        if self._session.exit_status(LINK_END_S) is not None:
            return None
        return self._link_ended(LINK_END_S if self._session.is_over else 0.0)

    def _link_lost(self, why: str) -> LinkLostError:
        return LinkLostError(self.worker, f"the connection broke during `{self.command}` ({why})")
