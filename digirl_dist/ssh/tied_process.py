"""Processes that end with this one, however it ends."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import cache

_DIES_WITH_ITS_PARENT = (
    "import ctypes, os, sys; ctypes.CDLL(None).prctl(1, 15); "
    "os.getppid() == int(sys.argv[1]) and os.execvp(sys.argv[2], sys.argv[2:])"
)


def start(
    command: Sequence[str], stdin: int, stdout: int, stderr: int, env: Mapping[str, str]
) -> subprocess.Popen[bytes]:
    """Starts a command in a session of its own; where this process ends, it gets SIGTERM."""
    return _starter().submit(_start, command, stdin, stdout, stderr, env).result()


def _start(
    command: Sequence[str], stdin: int, stdout: int, stderr: int, env: Mapping[str, str]
) -> subprocess.Popen[bytes]:
    if sys.platform == "linux":
        command = [sys.executable, "-ISc", _DIES_WITH_ITS_PARENT, str(os.getpid()), *command]
    return subprocess.Popen(command, stdin=stdin, stdout=stdout, stderr=stderr, env=env, start_new_session=True)


@cache
def _starter() -> ThreadPoolExecutor:
    """Returns the one thread that starts processes: what ends with its parent ends with the thread that started it."""
    return ThreadPoolExecutor(1, thread_name_prefix="start")
