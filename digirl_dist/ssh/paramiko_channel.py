"""A command on a channel of a paramiko transport."""

from __future__ import annotations

import threading
import time
from typing import cast

import paramiko

from digirl_dist.errors import LinkLostError, WorkerError
from digirl_dist.ssh.channel import LINK_END_S, READ_BYTES, SLICE_S, STDERR_KEPT, Channel
from digirl_dist.ssh.wire import HELD_S, Transport

_BROKEN = (OSError, EOFError, paramiko.SSHException)
"""Exceptions of paramiko once a link or its channel is gone."""


class ParamikoChannel(Channel):
    """A ``Channel`` whose bytes are encrypted in this process."""

    packet_bytes = 32_704
    """Largest write that fits one packet of OpenSSH; measured to be faster than larger writes."""

    def __init__(self, raw: paramiko.Channel, worker: str, command: str, stall_s: float) -> None:
        super().__init__(worker, command)
        # paramiko measures timeouts by the time of day: if that jumps back, they may take hours. So paramiko never
        # waits; this class does, on the monotonic clock.
        raw.settimeout(0.0)
        self._readable = threading.Event()
        raw.in_buffer.set_event(self._readable)
        self._raw = raw
        self._stall_s = stall_s
        self._stderr = bytearray()
        self._stderr_lock = threading.Lock()

    def write(self, data: bytes | bytearray | memoryview) -> None:
        view = memoryview(data).cast("B")
        while view:
            view = view[self._send(view[: self.packet_bytes]) :]

    def close_input(self) -> None:
        try:
            self._raw.shutdown_write()
        except _BROKEN:
            pass  # the command has ended; the next read reports it better

    def stderr(self) -> bytes:
        self._drain_stderr()
        return bytes(self._stderr)

    @property
    def exit_status(self) -> int | None:
        return self._raw.exit_status if self._raw.exit_status_ready() else None

    def wait(self, timeout_s: float) -> int:
        if not self._raw.status_event.wait(timeout_s):
            raise self._did_not_end(timeout_s)
        if self._lost():
            raise self._link_lost()
        return self._raw.exit_status

    def ended(self) -> WorkerError:
        self._raw.status_event.wait(self._stall_s)
        return self._link_lost() if self._lost() else self._ended_with(self.exit_status)

    def close(self) -> None:
        try:
            self._raw.close()
        except _BROKEN:
            pass  # the link is gone, and the channel with it

    def receive_until(self, deadline: float) -> bytes | None:
        while True:
            asked_at = time.monotonic()
            self._readable.wait(SLICE_S)
            try:
                data = self._raw.recv(READ_BYTES)
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
                    raise self._stalled(self._stall_s) from None
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
                self._raw.out_buffer_cv.wait(SLICE_S)

    def _drain_stderr(self) -> None:
        with self._stderr_lock:
            while self._raw.recv_stderr_ready():
                self._stderr += self._raw.recv_stderr(READ_BYTES)
            del self._stderr[:-STDERR_KEPT]

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
            transport.join(LINK_END_S)
        return not transport.is_active()

    def _link_lost(self) -> LinkLostError:
        silent_s = cast(Transport, self._raw.get_transport()).silent_s()
        return LinkLostError(
            self.worker, f"the connection broke during `{self.command}` (last heard {silent_s:.0f} s ago)"
        )
