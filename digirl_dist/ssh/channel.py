"""One command on a worker: its input, output, stderr, and the reason why it ended."""

from __future__ import annotations

import threading
import time
from typing import cast

import paramiko

from digirl_dist.errors import LinkLostError, WorkerError
from digirl_dist.ssh.wire import HELD_S, Transport

PACKET_BYTES = 32_704
"""Largest write that fits one packet of OpenSSH; measured to be faster than larger writes."""
_READ_BYTES = 1 << 20
_SLICE_S = 0.5
_STDERR_KEPT = 1 << 20
_LINK_END_S = 0.5
_BROKEN = (OSError, EOFError, paramiko.SSHException)
"""Exceptions of paramiko once a link or its channel is gone."""


class Channel:
    """A running command with its three streams.

    One thread may read while another writes. Both also drain stderr, so a command with much output there never blocks
    while either of them is active. Every wait ends when the link does.
    """

    def __init__(self, raw: paramiko.Channel, worker: str, command: str, stall_s: float) -> None:
        # paramiko measures timeouts by the time of day: if that jumps back, they may take hours. So paramiko never
        # waits; this class does, on the monotonic clock.
        raw.settimeout(0.0)
        self._readable = threading.Event()
        raw.in_buffer.set_event(self._readable)
        self.worker = worker
        self.command = command
        self._raw = raw
        self._stall_s = stall_s
        self._unread = bytearray()
        self._stderr = bytearray()
        self._stderr_lock = threading.Lock()

    def write(self, data: bytes | bytearray | memoryview) -> None:
        """Sends all of ``data``.

        Raises LinkLostError if the link is gone or accepts nothing within the stall limit, and WorkerError with the
        end of the command's stderr if the command has ended.
        """
        view = memoryview(data).cast("B")
        while view:
            view = view[self._send(view[:PACKET_BYTES]) :]

    def close_input(self) -> None:
        """Closes the command's stdin."""
        try:
            self._raw.shutdown_write()
        except _BROKEN:
            pass  # the command has ended; the next read reports it better

    def read(self, size: int = _READ_BYTES, timeout_s: float | None = None) -> bytes:
        """Returns at least one and at most ``size`` bytes of output; ``b""`` at its end.

        Raises LinkLostError if the link is gone, or no output arrives for ``timeout_s`` (None: waits as long as the
        link lives).
        """
        if self._unread:
            taken = bytes(self._unread[:size])
            del self._unread[:size]
            return taken
        data = self._receive(_deadline(timeout_s), timeout_s)
        self._unread += data[size:]
        return data[:size]

    def readline(self, timeout_s: float | None = None) -> bytes:
        """Returns one line with its newline; at the end of the output an unfinished line, or ``b""``.

        Raises as ``read`` does.
        """
        deadline = _deadline(timeout_s)
        searched = 0
        while (end := self._unread.find(b"\n", searched)) < 0:
            searched = len(self._unread)
            more = self._receive(deadline, timeout_s)
            if not more:
                return self.read(max(searched, 1)) if searched else b""
            self._unread += more
        line = bytes(self._unread[: end + 1])
        del self._unread[: end + 1]
        return line

    def stderr_tail(self, lines: int = 20) -> str:
        """Returns the last lines that the command wrote to stderr."""
        return "\n".join(self.stderr().decode(errors="replace").splitlines()[-lines:])

    def stderr(self) -> bytes:
        """Returns the command's stderr so far, at most its last MiB."""
        self._drain_stderr()
        return bytes(self._stderr)

    @property
    def exit_status(self) -> int | None:
        """None while the command runs; -1 when a signal ended it."""
        return self._raw.exit_status if self._raw.exit_status_ready() else None

    def wait(self, timeout_s: float) -> int:
        """Returns the exit status of a command whose output has ended. Raises WorkerError or LinkLostError."""
        if not self._raw.status_event.wait(timeout_s):
            raise WorkerError(self.worker, f"`{self.command}` closed its output but did not end within {timeout_s:g} s")
        if self._lost():
            raise self._link_lost()
        return self._raw.exit_status

    def ended(self) -> WorkerError:
        """Returns the error for a command that ended too early: a lost link, or its exit status and stderr."""
        self._raw.status_event.wait(self._stall_s)
        if self._lost():
            return self._link_lost()
        said = self.stderr_tail() or "no output on stderr"
        return WorkerError(self.worker, f"`{self.command}` ended with status {self.exit_status}: {said}")

    def close(self) -> None:
        """Closes the command's streams without killing the command."""
        try:
            self._raw.close()
        except _BROKEN:
            pass  # the link is gone, and the channel with it

    def receive_until(self, deadline: float) -> bytes | None:
        """Returns the next output, ``b""`` at its end, or None if none arrives before ``deadline`` (monotonic)."""
        while True:
            asked_at = time.monotonic()
            self._readable.wait(_SLICE_S)
            try:
                data = self._raw.recv(_READ_BYTES)
            except TimeoutError:
                data = None
            except _BROKEN as error:  # recv sends window adjustments to the other side
                raise self._link_lost() from error
            if (held_s := time.monotonic() - asked_at) > HELD_S:
                deadline += held_s
            self._drain_stderr()
            if data == b"" and self._lost():
                raise self._link_lost()
            if data is not None or time.monotonic() >= deadline:
                return data

    def _receive(self, deadline: float, timeout_s: float | None) -> bytes:
        data = self.receive_until(deadline)
        if data is None:
            raise LinkLostError(self.worker, f"`{self.command}` was silent for {timeout_s:g} s")
        return data

    def _send(self, view: memoryview) -> int:
        """Returns how many bytes were accepted, at least one."""
        deadline = time.monotonic() + self._stall_s
        while True:
            self._wait_for_window()
            try:
                sent = self._raw.send(view)  # type: ignore[arg-type]  # any buffer will do
            except TimeoutError:
                self._drain_stderr()
                if time.monotonic() >= deadline:
                    raise self._stalled() from None
                continue
            except _BROKEN as error:
                raise self.ended() from error
            if sent == 0:
                raise self.ended()
            return sent

    def _wait_for_window(self) -> None:
        """Waits until the send window opens, the channel is closed, or half a second is over."""
        with self._raw.out_buffer_cv:
            if self._raw.out_window_size == 0 and not self._raw.closed:
                self._raw.out_buffer_cv.wait(_SLICE_S)

    def _drain_stderr(self) -> None:
        with self._stderr_lock:
            while self._raw.recv_stderr_ready():
                self._stderr += self._raw.recv_stderr(_READ_BYTES)
            del self._stderr[:-_STDERR_KEPT]

    def _lost(self) -> bool:
        """Returns True if the channel ended because the link did. Valid once the output has ended or sending failed.

        paramiko closes the channels of a broken link a moment before it marks the transport inactive. Hence the wait in
        the one ambiguous case: a command without an exit status, which otherwise means that a signal ended it.
        """
        closed = self._raw.closed
        if self._raw.exit_status != -1:
            return False
        transport = self._raw.get_transport()
        if closed and transport.is_active():
            transport.join(_LINK_END_S)
        return not transport.is_active()

    def _link_lost(self) -> LinkLostError:
        silent_s = cast(Transport, self._raw.get_transport()).silent_s()
        return LinkLostError(
            self.worker, f"the connection broke during `{self.command}` (last heard {silent_s:.0f} s ago)"
        )

    def _stalled(self) -> LinkLostError:
        return LinkLostError(
            self.worker, f"`{self.command}` took no data for {self._stall_s:g} s though the link answers"
        )


def _deadline(timeout_s: float | None) -> float:
    return float("inf") if timeout_s is None else time.monotonic() + timeout_s
