"""Processes that serve connections: commands that are run to their end, and programs that end with this one."""

from __future__ import annotations

import os
import signal
import subprocess
import threading
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import cache

from digirl_dist.child_process import dying_with_this_process

CONFIGURED_S = 8.0
"""Commands of the user's configuration may take so long to decide what it says: less than ``reachable`` waits."""


def run_to_end(
    command: Sequence[str], limit_s: float, input: bytes = b"", environ: Mapping[str, str] | None = None
) -> tuple[int, str, str]:
    """Returns status, stdout and stderr. Raises OSError, and TimeoutExpired once all that it started has been ended."""
    pipe = subprocess.PIPE
    with subprocess.Popen(command, stdin=pipe, stdout=pipe, stderr=pipe, env=environ, start_new_session=True) as asked:
        try:
            output, complaint = map(os.fsdecode, asked.communicate(input, limit_s))  # paths in any encoding
        except BaseException:
            os.killpg(asked.pid, signal.SIGKILL)
            raise
    return asked.returncode, output, complaint


def start_tied(
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
