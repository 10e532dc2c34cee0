"""One command on a worker: its input, output, stderr, and the reason why it ended."""

from __future__ import annotations

import math
import threading
import time
from typing import cast

import paramiko

from digirl_dist.errors import LinkLostError, TooSlowError, WorkerError
from digirl_dist.ssh.wire import HELD_S, Transport

PACKET_BYTES = 32_704
"""Largest write that fits one packet of OpenSSH; measured to be faster than larger writes."""
_READ_BYTES = 1 << 20
_SLICE_S = 0.5
_STDERR_KEPT = 1 << 20
_STDERR_AT_ONCE = 1 << 22
_LONGEST_LINE = 1 << 20
_LINK_END_S = 0.5
_BROKEN = (OSError, EOFError, paramiko.SSHException)
"""Exceptions of paramiko once a link or its channel is gone."""


class Deadline:
    """The end of a wait, in monotonic seconds. It moves on by the time for which this process was held up itself."""

    def __init__(self, timeout_s: float | None) -> None:
        self.timeout_s = math.inf if timeout_s is None else timeout_s
        self.at = time.monotonic() + self.timeout_s
        self.was_tried = False
        """Whether there was a look at what had come already; a wait of no time takes that."""

    @property
    def left_s(self) -> float:
        return self.at - time.monotonic()


class Allowance:
    """The time that a transfer may still take: ``slack_s``, and what each byte earns at ``rate`` bytes per second.

    It never exceeds ``slack_s``, so a transfer ends that stands still for so long, or that is slower on the whole.
    """

    def __init__(self, slack_s: float, rate: float) -> None:
        self.slack_s = slack_s
        self.rate = rate
        self.left_s = slack_s

    def took(self, size: int, deadline: Deadline) -> None:
        """Notes that ``size`` bytes have moved since ``deadline``, the end of what was left, was set."""
        self.left_s = min(self.slack_s, deadline.left_s + size / self.rate)


class Channel:
    """A running command with its three streams.

    One thread may read while another writes. Both also drain stderr, so a command with much output there never blocks
    while either of them is active. Every wait ends when the link does.
    """

    def __init__(self, raw: paramiko.Channel, worker: str, command: str, stall_s: float, slowest: float) -> None:
        """``stall_s`` and ``slowest`` (bytes per second) are the allowance of a ``write`` that has none of its own."""
        # paramiko measures timeouts by the time of day: if that jumps back, they may take hours. So paramiko never
        # waits; this class does, on the monotonic clock.
        raw.settimeout(0.0)
        self._readable = threading.Event()
        raw.in_buffer.set_event(self._readable)
        self.worker = worker
        self.command = command
        self._raw = raw
        self._stall_s = stall_s
        self._slowest = slowest
        self._unread = bytearray()
        self._stderr = bytearray()
        self._stderr_lock = threading.Lock()

    def write(self, data: bytes | bytearray | memoryview, allowance: Allowance | None = None) -> None:
        """Sends all of ``data``.

        Raises LinkLostError if the link is gone or takes the data more slowly than the allowance, and WorkerError with
        the end of the command's stderr if the command has ended.
        """
        allowance = allowance or Allowance(self._stall_s, self._slowest)
        view = memoryview(data).cast("B")
        while view:
            view = view[self._send(view[:PACKET_BYTES], allowance) :]

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
        if not self._unread:
            data = self.receive_until(Deadline(timeout_s))
            if data is None:
                raise self._silent(timeout_s or 0.0)
            self._unread += data
        return self._take(size)

    def read_exactly(self, size: int, timeout_s: float) -> bytes:
        """Returns ``size`` bytes of output, fewer only at its end.

        Raises LinkLostError if the link is gone, or not all of them have come within ``timeout_s``.
        """
        deadline = Deadline(timeout_s)
        while len(self._unread) < size and (more := self.receive_until(deadline)) != b"":
            if more is None:
                raise self._silent(timeout_s)
            self._unread += more
        return self._take(size)

    def pull(self, size: int, allowance: Allowance) -> bytes:
        """Returns at least one and at most ``size`` bytes of output; ``b""`` at its end.

        Raises LinkLostError if the link is gone or the output comes more slowly than the allowance.
        """
        deadline = Deadline(allowance.left_s)
        data = self._take(size) or self.receive_until(deadline)
        if data is None:
            raise self._too_slow(allowance)
        self._unread += data[size:]
        allowance.took(len(data[:size]), deadline)
        return data[:size]

    def readline(self, timeout_s: float | None = None, longest: int = _LONGEST_LINE) -> bytes:
        """Returns one line with its newline; at the end of the output an unfinished line, or ``b""``.

        Of a line longer than ``longest`` bytes, it returns so many and one more. Raises LinkLostError if the link is
        gone, or the whole line has not come within ``timeout_s``.
        """
        line = self._line(Deadline(timeout_s), longest)
        if line is None:
            raise self._silent(timeout_s or 0.0)
        return line

    def pull_line(self, longest: int, allowance: Allowance, moved: int = 0) -> bytes:
        """Returns a line as ``readline`` does, within the allowance; it confirms that ``moved`` bytes have arrived."""
        deadline = Deadline(allowance.left_s)
        line = self._line(deadline, longest)
        if line is None:
            raise self._too_slow(allowance)
        allowance.took(moved + len(line), deadline)
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

    def receive_until(self, deadline: Deadline) -> bytes | None:
        """Returns the next output, ``b""`` at its end, or None at the deadline, even if output keeps coming."""
        while True:
            asked_at = time.monotonic()
            self._readable.wait(_SLICE_S)
            deadline.at += _held_s(asked_at)
            if deadline.left_s <= 0 and deadline.was_tried:
                return None
            deadline.was_tried = True
            try:
                data = self._raw.recv(_READ_BYTES)
            except TimeoutError:
                data = None
            except _BROKEN as error:  # recv sends window adjustments to the other side
                raise self._link_lost() from error
            self._drain_stderr()
            if data == b"" and self._lost():
                raise self._link_lost()
            if data is not None:
                return data

    def _take(self, size: int) -> bytes:
        """Takes at most ``size`` bytes of the output that has been read already."""
        taken = bytes(self._unread[:size])
        del self._unread[:size]
        return taken

    def _line(self, deadline: Deadline, longest: int) -> bytes | None:
        """Returns the next line, or what there is of it at the end of the output; None at the deadline."""
        searched = 0
        while (end := self._unread.find(b"\n", searched)) < 0 and len(self._unread) <= longest:
            searched = len(self._unread)
            more = self.receive_until(deadline)
            if more is None:
                return None
            if not more:
                break
            self._unread += more
        return self._take(min(end, longest) + 1 if end >= 0 else longest + 1)

    def _send(self, view: memoryview, allowance: Allowance) -> int:
        """Returns how many bytes were accepted, at least one."""
        deadline = Deadline(allowance.left_s)
        while True:
            asked_at = time.monotonic()
            self._wait_for_window()
            deadline.at += _held_s(asked_at)
            try:
                sent = self._raw.send(view)  # type: ignore[arg-type]  # any buffer will do
            except TimeoutError:
                self._drain_stderr()
                if deadline.left_s <= 0:
                    raise self._too_slow(allowance) from None
                continue
            except _BROKEN as error:
                raise self.ended() from error
            if sent == 0:
                raise self.ended()
            allowance.took(sent, deadline)
            return sent

    def _wait_for_window(self) -> None:
        """Waits until the send window opens, the channel is closed, or half a second is over."""
        with self._raw.out_buffer_cv:
            if self._raw.out_window_size == 0 and not self._raw.closed:
                self._raw.out_buffer_cv.wait(_SLICE_S)

    def _drain_stderr(self) -> None:
        with self._stderr_lock:
            left = _STDERR_AT_ONCE  # whoever floods it must not keep us here
            while left > 0 and self._raw.recv_stderr_ready():
                said = self._raw.recv_stderr(_READ_BYTES)
                left -= len(said)
                self._stderr += said
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

    def _silent(self, timeout_s: float) -> LinkLostError:
        return LinkLostError(self.worker, f"`{self.command}` was silent for {timeout_s:g} s")

    def _too_slow(self, allowance: Allowance) -> TooSlowError:
        return TooSlowError(
            self.worker,
            f"`{self.command}` moved no data for {allowance.slack_s:g} s (ssh.stall_s), or fewer than "
            f"{allowance.rate / 1024:g} KiB/s for longer (ssh.slowest_kb_s), though the link answers",
        )


def _held_s(since: float) -> float:
    """Returns for how long this thread was held up, since a wait that takes half a second at most."""
    held_s = time.monotonic() - since
    return held_s if held_s > HELD_S else 0.0
