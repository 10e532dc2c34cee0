"""Starts and ends child processes with the same interpreter and package, and reads the ends of their logs."""

from __future__ import annotations

import ctypes
import os
import signal
import subprocess
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import digirl_dist

SOURCE = str(Path(digirl_dist.__file__).resolve().parent.parent)
"""The folder from which this package was imported."""

_TAIL_BYTES = 1 << 16

_PR_SET_PDEATHSIG = 1
"""prctl(2)"""

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


def reap(process: subprocess.Popen[Any], limit_s: float) -> bool:
    """Waits for a process to end, and kills it if it does not; returns whether it ended by itself."""
    try:
        process.wait(limit_s)
        return True
    except subprocess.TimeoutExpired:
        process.kill()
        process.wait()
        return False


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
