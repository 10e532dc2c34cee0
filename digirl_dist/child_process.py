"""Starts and ends child processes with the same interpreter and package, and keeps and reads their logs."""

from __future__ import annotations

import ctypes
import fcntl
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any, BinaryIO

import digirl_dist

SOURCE = str(Path(digirl_dist.__file__).resolve().parent.parent)
"""The folder from which this package was imported."""

_TAIL_BYTES = 1 << 16
_LONGEST_LOG = 16 << 20
_BEGINNING = 1 << 20
_NEWEST = 4 << 20
_LEFT_OUT = b"\n[...: what was here was left out, as the log was too long]\n"
_LOOK_S = 2.0

_PR_SET_PDEATHSIG = 1
"""prctl(2)"""
_F_SETPIPE_SZ, _F_GETPIPE_SZ = 1031, 1032
"""fcntl(2)"""

_DIES_WITH_ITS_PARENT = (
    f"import ctypes, os, sys; ctypes.CDLL(None).prctl({_PR_SET_PDEATHSIG}, {signal.SIGTERM:d}); "
    "os.getppid() == int(sys.argv[1]) and os.execvp(sys.argv[2], sys.argv[2:])"
)


def environment() -> dict[str, str]:
    """Returns this process's environment with a PYTHONPATH on which ``python -m digirl_dist…`` finds this package."""
    inherited = os.environ.get("PYTHONPATH", "")
    paths = [SOURCE, *(path for path in inherited.split(os.pathsep) if path and path != SOURCE)]
    return {**os.environ, "PYTHONPATH": os.pathsep.join(paths)}


def dying_with_this_process(command: Sequence[str]) -> list[str]:
    """Returns the command so that Linux ends it when the thread ends that starts it; unchanged elsewhere."""
    if sys.platform != "linux":
        return list(command)
    return [sys.executable, "-ISc", _DIES_WITH_ITS_PARENT, str(os.getpid()), *command]


def ends_with_this_process() -> Callable[[], None]:
    """Returns what a child calls once it is forked: Linux kills it when the thread ends that forked it."""
    prctl, parent = ctypes.CDLL(None).prctl, os.getpid()

    def tie() -> None:
        prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
        if os.getppid() != parent:  # it went before
            os._exit(1)

    return tie


def widen(pipe: int, size: int) -> None:
    """Lets a pipe hold so many bytes that one end need not wait for each turn of the other; does nothing if it may not.

    Python has the names of the commands only where it was built on headers of this century's second decade.
    """
    with suppress(OSError):  # no pipe, or this user has too many large ones
        if fcntl.fcntl(pipe, _F_GETPIPE_SZ) < size:
            fcntl.fcntl(pipe, _F_SETPIPE_SZ, size)


def write_all(descriptor: int, data: bytes | memoryview) -> None:
    """Writes all of it, waiting where the other end takes only a part. Raises OSError."""
    while data:
        data = data[os.write(descriptor, data) :]


def reap(process: subprocess.Popen[Any], limit_s: float) -> bool:
    """Waits for a process to end, and kills it if it does not; returns whether it ended by itself."""
    try:
        process.wait(limit_s)
        return True
    except subprocess.TimeoutExpired:
        process.kill()
        process.wait()
        return False


class _ShortLogs:
    """Looks after the logs of this process's children in a thread, which the first one starts."""

    def __init__(self) -> None:
        self._logs: set[Path] = set()
        self._lock = threading.Lock()
        self._thread: threading.Thread | None = None

    def add(self, log: Path) -> None:
        with self._lock:
            self._logs.add(log)
            if self._thread is None or not self._thread.is_alive():  # none is in a fork
                self._thread = threading.Thread(target=self._look_after, name="logs", daemon=True)
                with suppress(RuntimeError):  # no thread to be had: with the next log
                    self._thread.start()

    def _look_after(self) -> None:
        while True:
            time.sleep(_LOOK_S)
            with self._lock:
                self._logs = {log for log in self._logs if log.exists()}
            for log in list(self._logs):
                with suppress(OSError):
                    shorten(log)


_SHORT_LOGS = _ShortLogs()


def keep_short(log: Path) -> None:
    """Keeps a log that others append to under 16 MiB, as ``shorten`` does, for as long as this process lives."""
    _SHORT_LOGS.add(log.absolute())


def opened_log(log: Path) -> BinaryIO:
    """Opens a log for what a child and all that it starts print, and keeps it short."""
    opened = open(log, "ab", opener=lambda name, flags: os.open(name, flags | os.O_NOFOLLOW))
    keep_short(log)
    return opened


def shorten(log: Path) -> None:
    """Leaves the beginning of a log that is too long, and its newest part; whoever appends to it goes on doing so.

    What they write at the very moment may be lost. Raises OSError.
    """
    file = os.open(log, os.O_RDWR | os.O_APPEND | os.O_NONBLOCK | os.O_NOFOLLOW)
    try:
        size = os.fstat(file).st_size
        if size > _LONGEST_LOG:
            newest = os.pread(file, 2 * _NEWEST, size - _NEWEST)
            os.ftruncate(file, _BEGINNING)
            os.write(file, _LEFT_OUT + newest)
    finally:
        os.close(file)


def tail(log: Path, count: int) -> list[str]:
    """Returns the last lines of a log, however large it is; none if it cannot be read."""
    try:
        with log.open("rb") as file:
            file.seek(max(0, file.seek(0, os.SEEK_END) - _TAIL_BYTES))
            return file.read(_TAIL_BYTES).decode(errors="replace").splitlines()[-count:]
    except OSError:
        return []


def last_lines(log: Path, count: int = 5) -> str:
    """Returns the last lines of a log as the end of an error message; empty if there are none."""
    lines = tail(log, count)
    return "; its last lines: " + " | ".join(lines) if lines else ""
