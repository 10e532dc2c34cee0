"""A command on a channel of a paramiko transport."""

from __future__ import annotations

import threading
from typing import cast

import paramiko

from digirl_dist.errors import LinkLostError
from digirl_dist.ssh.channel import LINK_END_S, READ_BYTES, Channel
from digirl_dist.ssh.wire import Transport
from digirl_dist.strands.lookout import Call

_BROKEN = (OSError, EOFError, paramiko.SSHException)
"""Exceptions of paramiko once a link or its channel is gone."""


class _Readable(threading.Event):
    """Set by paramiko while something can be read; also calls who asked for that."""

    def __init__(self) -> None:
        super().__init__()
        self._calls: list[Call] = []

    def set(self) -> None:
        super().set()
        while self._calls:
            self._calls.pop()()

    def when_set(self, call: Call) -> None:
        self._calls = [call]
        if self.is_set():
            call()


class ParamikoChannel(Channel):
    """A ``Channel`` whose bytes are encrypted in this process."""

    packet_bytes = 32_704
    """Largest write that fits one packet of OpenSSH; measured to be faster than larger writes."""

    def __init__(self, raw: paramiko.Channel, worker: str, command: str, stall_s: float, slowest: float) -> None:
        super().__init__(worker, command, stall_s, slowest)
        # paramiko measures timeouts by the time of day: if that jumps back, they may take hours. So paramiko never
        # waits; this class does, on the monotonic clock.
        raw.settimeout(0.0)
        self._readable, self._stderr_readable = _Readable(), _Readable()
        raw.in_buffer.set_event(self._readable)
        raw.in_stderr_buffer.set_event(self._stderr_readable)
        self._raw = raw

    def close_input(self) -> None:
        try:
            self._raw.shutdown_write()
        except _BROKEN:
            pass  # the command has ended; the next read reports it better

    @property
    def exit_status(self) -> int | None:
        return self._raw.exit_status if self._raw.exit_status_ready() else None

    def close(self) -> None:
        try:
            self._raw.close()
        except _BROKEN:
            pass  # the link is gone, and the channel with it

    def _offer(self, view: memoryview, wait_s: float) -> int:
        with self._raw.out_buffer_cv:
            if self._raw.out_window_size == 0 and not self._raw.closed:
                self._raw.out_buffer_cv.wait(wait_s)
        try:
            sent = self._raw.send(view[: self.packet_bytes])  # type: ignore[arg-type]  # any buffer will do
        except TimeoutError:
            return 0
        except _BROKEN as error:
            raise self.ended() from error
        if sent == 0:
            raise self.ended()
        return sent

    def _take_in(self, wait_s: float) -> bytes | None:
        self._readable.wait(wait_s)
        try:
            return self._raw.recv(READ_BYTES)
        except TimeoutError:
            return None
        except _BROKEN as error:  # recv sends window adjustments to the other side
            raise self._link_ended() from error

    def _when_readable(self, call: Call) -> None:
        self._readable.when_set(call)
        self._stderr_readable.when_set(call)

    def _take_in_stderr(self) -> bytes:
        return self._raw.recv_stderr(READ_BYTES) if self._raw.recv_stderr_ready() else b""

    def _wait_for_end(self, timeout_s: float) -> bool:
        return self._raw.status_event.wait(timeout_s)

    def _lost(self) -> LinkLostError | None:
        """paramiko closes the channels of a broken link a moment before it marks the transport inactive.

        Hence the wait in the one ambiguous case: a command without an exit status, which otherwise means that a signal
        ended it.
        """
        closed = self._raw.closed
        if self._raw.exit_status != -1:
            return None
        transport = self._raw.get_transport()
        if closed and transport.is_active():
            transport.join(LINK_END_S)
        return None if transport.is_active() else self._link_ended()

    def _link_ended(self) -> LinkLostError:
        silent_s = cast(Transport, self._raw.get_transport()).silent_s()
        return self._link_lost(f"last heard {silent_s:.0f} s ago")
