"""One command on a worker: its input, output, stderr, and the reason why it ended."""

from __future__ import annotations

import math
import os
import threading
import time
from abc import ABC, abstractmethod
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import BinaryIO

from digirl_dist.errors import LinkLostError, SilentError, TooSlowError, WorkerError

READ_BYTES = 1 << 20
LINK_END_S = 0.5
"""A link's end is known so much later than that of its channels, at most."""
_SLICE_S = 0.5
_HELD_S = 2.0
"""A wait for one slice that takes this long was held up itself (process suspended, machine overloaded): the peer's
silence during that time does not count. A suspended host does not declare its peers dead."""
_END_S = 6.0
"""A command that closed its output is waited for so long: `attach` waits for its program for half of that."""
_STDERR_KEPT = 1 << 20
_STDERR_AT_ONCE = 1 << 22
_LONGEST_LINE = 1 << 20


def in_short(command: str) -> str:
    """Returns a command for messages: a program may be streamed as an argument."""
    first, _, rest = command.partition("\n")
    return f"{first} …" if rest else first


def last_lines(output: bytes) -> str:
    """Returns the last lines of a command's output, for messages: at most 4,000 characters, whatever it printed."""
    return "\n".join(output.decode(errors="replace").splitlines()[-20:])[-4000:]


class Deadline:
    """The end of a wait, in monotonic seconds. It moves on by the time for which this process was held up itself."""

    def __init__(self, timeout_s: float) -> None:
        self.timeout_s = timeout_s
        self.at = time.monotonic() + self.timeout_s
        self.was_tried = False
        """Whether there was a look at what had come already; a wait of no time takes that."""

    @property
    def left_s(self) -> float:
        return self.at - time.monotonic()

    def waited(self, since: float) -> None:
        """Notes that a wait of one second at most, begun at ``since``, is over."""
        held_s = time.monotonic() - since
        self.at += held_s if held_s > _HELD_S else 0.0


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


Within = float | Deadline | Allowance
"""How long something may take: seconds, until a deadline that several waits share, or by its bytes."""


@dataclass(frozen=True)
class FilePart:
    """Bytes of an open local file, which may go to a worker without passing through this process's memory."""

    file: BinaryIO
    offset: int
    size: int

    def after(self, size: int) -> FilePart:
        """Returns the part without its first ``size`` bytes."""
        return FilePart(self.file, self.offset + size, self.size - size)

    def read(self, size: int) -> bytes:
        """Returns the first bytes, at most ``size``; fewer only if the file has become shorter."""
        return os.pread(self.file.fileno(), min(size, self.size), self.offset)


class Channel(ABC):
    """A running command with its three streams.

    One thread may read while another writes. Both also drain stderr, so a command with much output there never blocks
    while either of them is active. Every wait ends when the link does.
    """

    packet_bytes: int
    """Smaller writes are worth collecting up to this size."""

    def __init__(self, worker: str, command: str, stall_s: float, slowest: float) -> None:
        """``stall_s`` and ``slowest`` (bytes per second) are the allowance of what has none of its own."""
        self.worker = worker
        self.command = in_short(command)
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
            view = view[self._send(partial(self._offer, view), allowance) :]

    def write_file(self, part: FilePart, allowance: Allowance) -> None:
        """Sends the part as ``write`` does. Raises EOFError if the file has become shorter."""
        while part.size:
            part = part.after(self._send_file(part, allowance))

    @abstractmethod
    def close_input(self) -> None:
        """Closes the command's stdin."""

    def read(self, size: int = READ_BYTES, within: Within = math.inf) -> bytes:
        """Returns at least one and at most ``size`` bytes of output; ``b""`` at its end.

        Raises LinkLostError if the link is gone, SilentError if nothing has come within so many seconds, or
        TooSlowError if the output comes more slowly than the allowance.
        """
        deadline = self._begun(within)
        data = self._take(size) or self._receive(deadline)
        if data is None:
            raise self._over(within, deadline)
        self._unread += data[size:]
        if isinstance(within, Allowance):
            within.took(len(data[:size]), deadline)
        return data[:size]

    def read_exactly(self, size: int, within: float | None = None) -> bytes:
        """Returns ``size`` bytes of output, fewer only at its end; raises as ``read``.

        They must all come within so many seconds, or else within the channel's own allowance.
        """
        limit = Allowance(self._stall_s, self._slowest) if within is None else Deadline(within)
        data = bytearray()
        while len(data) < size and (more := self.read(size - len(data), limit)):
            data += more
        return bytes(data)

    def readline(self, within: Within = math.inf, longest: int = _LONGEST_LINE, moved: int = 0) -> bytes:
        """Returns one line with its newline; at the end of the output an unfinished line, or ``b""``.

        Raises as ``read``. Of a line longer than ``longest`` bytes, it returns so many and one more. To an allowance,
        the line confirms that ``moved`` bytes have arrived.
        """
        deadline = self._begun(within)
        line = self._line(deadline, longest)
        if line is None:
            raise self._over(within, deadline)
        if isinstance(within, Allowance):
            within.took(moved + len(line), deadline)
        return line

    def stderr_tail(self) -> str:
        """Returns the last lines that the command wrote to stderr."""
        return last_lines(self.stderr())

    def stderr(self) -> bytes:
        """Returns the command's stderr so far, at most its last MiB."""
        self._drain_stderr()
        return bytes(self._stderr)

    @property
    @abstractmethod
    def exit_status(self) -> int | None:
        """None while the command runs; -1 when a signal ended it."""

    def wait(self, timeout_s: float) -> int:
        """Returns the exit status of a command whose output has ended. Raises WorkerError or LinkLostError."""
        if not self._wait_for_end(timeout_s):
            raise WorkerError(self.worker, f"`{self.command}` closed its output but did not end within {timeout_s:g} s")
        if lost := self._lost():
            raise lost
        status = self.exit_status
        return -1 if status is None else status

    def ended(self) -> WorkerError:
        """Returns the error for a command that ended too early: a lost link, or its exit status and stderr."""
        has_ended = self._wait_for_end(min(self._stall_s, _END_S))
        if lost := self._lost():
            return lost
        said = self.stderr_tail() or "no output on stderr"
        killed = self.exit_status in (None, -1)
        how = "was ended by a signal, as when memory runs out" if killed else f"ended with status {self.exit_status}"
        if not has_ended:
            how = f"closed its output and has not ended {_END_S:g} s later"
        return WorkerError(self.worker, f"`{self.command}` {how}: {said}")

    @abstractmethod
    def close(self) -> None:
        """Closes the command's streams without killing the command."""

    @abstractmethod
    def _offer(self, view: memoryview, wait_s: float) -> int:
        """Returns how many bytes were accepted, 0 if none were in that time. Raises ``ended`` if none ever will be."""

    @abstractmethod
    def _take_in(self, wait_s: float) -> bytes | None:
        """Returns the next output, ``b""`` at its end, or None if none comes in that time. Raises LinkLostError."""

    @abstractmethod
    def _take_in_stderr(self) -> bytes:
        """Returns what has come on stderr; empty if nothing has."""

    @abstractmethod
    def _wait_for_end(self, timeout_s: float) -> bool:
        """Waits for the command's end, or the link's; returns False if neither came in that time."""

    @abstractmethod
    def _lost(self) -> LinkLostError | None:
        """Returns the error if the link ended the channel. Valid once output has ended or sending has failed."""

    def _receive(self, deadline: Deadline) -> bytes | None:
        """Returns the next output, ``b""`` at its end, or None at the deadline, even if output keeps coming."""
        while deadline.left_s > 0 or not deadline.was_tried:
            deadline.was_tried = True
            asked_at = time.monotonic()
            data = self._take_in(max(0.0, min(_SLICE_S, deadline.left_s)))
            deadline.waited(asked_at)
            self._drain_stderr()
            if data == b"" and (lost := self._lost()):
                raise lost
            if data is not None:
                return data
        return None

    def _send_file(self, part: FilePart, allowance: Allowance) -> int:
        """Sends the beginning of the part; returns its size. Raises EOFError."""
        data = part.read(READ_BYTES // self.packet_bytes * self.packet_bytes)
        if not data:
            raise EOFError
        self.write(data, allowance)
        return len(data)

    def _send(self, offer: Callable[[float], int], allowance: Allowance) -> int:
        """Returns how many bytes were accepted of what ``offer`` sends within so many seconds, at least one."""
        deadline = self._begun(allowance)
        while True:
            asked_at = time.monotonic()
            sent = offer(_SLICE_S)
            deadline.waited(asked_at)
            if sent:
                allowance.took(sent, deadline)
                return sent
            self._drain_stderr()
            if deadline.left_s <= 0:
                raise self._over(allowance, deadline)

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
            more = self._receive(deadline)
            if more is None:
                return None
            if not more:
                break
            self._unread += more
        return self._take(min(end, longest) + 1 if end >= 0 else longest + 1)

    def _drain_stderr(self) -> None:
        with self._stderr_lock:
            left = _STDERR_AT_ONCE  # whoever floods it must not keep us here
            while left > 0 and (said := self._take_in_stderr()):
                left -= len(said)
                self._stderr += said
                del self._stderr[:-_STDERR_KEPT]

    def _link_lost(self, why: str) -> LinkLostError:
        return LinkLostError(self.worker, f"the connection broke during `{self.command}` ({why})")

    def _begun(self, within: Within) -> Deadline:
        """Returns the end of a wait that begins now; of an allowance, each wait would exceed it a little."""
        if isinstance(within, Deadline):
            return within
        deadline = Deadline(within.left_s if isinstance(within, Allowance) else within)
        if isinstance(within, Allowance) and within.left_s <= 0:
            raise self._over(within, deadline)
        return deadline

    def _over(self, within: Within, deadline: Deadline) -> LinkLostError | TooSlowError:
        if not isinstance(within, Allowance):
            return SilentError(self.worker, f"`{self.command}` was silent for {deadline.timeout_s:g} s")
        return TooSlowError(
            self.worker,
            f"`{self.command}` moved no data for {within.slack_s:g} s (ssh.stall_s), or fewer than "
            f"{within.rate / 1024:g} KiB/s for longer (ssh.slowest_kb_s), though the link answers",
        )
