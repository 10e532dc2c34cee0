"""Processes that end with this one, however it ends."""

from __future__ import annotations

import subprocess
import threading
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import cache

from digirl_dist.child_process import dying_with_this_process


def start(
    command: Sequence[str], stdin: int, stdout: int, stderr: int, env: Mapping[str, str]
) -> subprocess.Popen[bytes]:
    """Starts a command in a session of its own; where this process ends, it gets SIGTERM."""
    with _making:
        starter = _starter()
    return starter.submit(_start, command, stdin, stdout, stderr, env).result()


def _start(
    command: Sequence[str], stdin: int, stdout: int, stderr: int, env: Mapping[str, str]
) -> subprocess.Popen[bytes]:
    command = dying_with_this_process(command)
    return subprocess.Popen(command, stdin=stdin, stdout=stdout, stderr=stderr, env=env, start_new_session=True)


_making = threading.Lock()
"""Two at once would each make a starter: one of them would go, and with it what it has started."""


@cache
def _starter() -> ThreadPoolExecutor:
    """Returns the one thread that starts processes: what ends with its parent ends with the thread that started it.

    Raises RuntimeError if that is refused, before a process is asked for, which would be started later for nobody.
    """
    starter = ThreadPoolExecutor(1, thread_name_prefix="start")
    starter.submit(int).result()
    return starter
