"""One command on a worker: its input, output, stderr, and the reason why it ended."""

from __future__ import annotations

import time
from abc import ABC, abstractmethod

from digirl_dist.errors import LinkLostError, WorkerError

READ_BYTES = 1 << 20
STDERR_KEPT = 1 << 20
SLICE_S = 0.5
"""Longest wait before a channel looks again whether its link lives."""
LINK_END_S = 0.5
"""A link's end is known so much later than that of its channels, at most."""


class Channel(ABC):
    """A running command with its three streams.

    One thread may read while another writes. Both also drain stderr, so a command with much output there never blocks
    while either of them is active. Every wait ends when the link does.
    """

    packet_bytes: int
    """Smaller writes are worth collecting up to this size."""

    def __init__(self, worker: str, command: str) -> None:
        self.worker = worker
        self.command = command
        self._unread = bytearray()

    @abstractmethod
    def write(self, data: bytes | bytearray | memoryview) -> None:
        """Sends all of ``data``.

        Raises LinkLostError if the link is gone or accepts nothing within the stall limit, and WorkerError with the
        end of the command's stderr if the command has ended.
        """

    @abstractmethod
    def close_input(self) -> None:
        """Closes the command's stdin."""

    @abstractmethod
    def receive_until(self, deadline: float) -> bytes | None:
        """Returns the next output, ``b""`` at its end, or None if none arrives before ``deadline`` (monotonic)."""

    @abstractmethod
    def stderr(self) -> bytes:
        """Returns the command's stderr so far, at most its last MiB."""

    @property
    @abstractmethod
    def exit_status(self) -> int | None:
        """None while the command runs; -1 when a signal ended it."""

    @abstractmethod
    def wait(self, timeout_s: float) -> int:
        """Returns the exit status of a command whose output has ended. Raises WorkerError or LinkLostError."""

    @abstractmethod
    def ended(self) -> WorkerError:
        """Returns the error for a command that ended too early: a lost link, or its exit status and stderr."""

    @abstractmethod
    def close(self) -> None:
        """Closes the command's streams without killing the command."""

    def read(self, size: int = READ_BYTES, timeout_s: float | None = None) -> bytes:
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

    def _receive(self, deadline: float, timeout_s: float | None) -> bytes:
        data = self.receive_until(deadline)
        if data is None:
            raise LinkLostError(self.worker, f"`{self.command}` was silent for {timeout_s:g} s")
        return data

    def _ended_with(self, status: int | None) -> WorkerError:
        said = self.stderr_tail() or "no output on stderr"
        return WorkerError(self.worker, f"`{self.command}` ended with status {status}: {said}")

    def _did_not_end(self, timeout_s: float) -> WorkerError:
        return WorkerError(self.worker, f"`{self.command}` closed its output but did not end within {timeout_s:g} s")

    def _stalled(self, stall_s: float) -> LinkLostError:
        return LinkLostError(self.worker, f"`{self.command}` took no data for {stall_s:g} s though the link answers")


def _deadline(timeout_s: float | None) -> float:
    return float("inf") if timeout_s is None else time.monotonic() + timeout_s
