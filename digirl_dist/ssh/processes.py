"""Processes that serve connections: commands that are run to their end, and programs that end with this one."""

from __future__ import annotations

import os
import signal
import subprocess
import threading
from collections.abc import Mapping, Sequence
from concurrent.futures import Future
from functools import cache, partial

from digirl_dist.child_process import dying_with_this_process
from digirl_dist.errors import on_error
from digirl_dist.threads import Threads, fulfil


def run_to_end(
    command: Sequence[str], limit_s: float, input: bytes = b"", environ: Mapping[str, str] | None = None
) -> tuple[int, str, str]:
    """Returns status, stdout and stderr. Raises OSError, and TimeoutExpired once all that it started has been ended."""
    pipe = subprocess.PIPE
    with (
        subprocess.Popen(command, stdin=pipe, stdout=pipe, stderr=pipe, env=environ, start_new_session=True) as asked,
        on_error(partial(os.killpg, asked.pid, signal.SIGKILL)),
    ):
        output, complaint = map(os.fsdecode, asked.communicate(input, limit_s))  # paths in any encoding
    return asked.returncode, output, complaint


def start_tied(
    command: Sequence[str], stdin: int, stdout: int, stderr: int, env: Mapping[str, str]
) -> subprocess.Popen[bytes]:
    """Starts a command in a session of its own; where this process ends, it gets SIGTERM."""
    with _making:
        starter = _starter()
    started: Future[subprocess.Popen[bytes]] = Future()
    starter.do(partial(fulfil, started, partial(_start, command, stdin, stdout, stderr, env)))
    return started.result()


def _start(
    command: Sequence[str], stdin: int, stdout: int, stderr: int, env: Mapping[str, str]
) -> subprocess.Popen[bytes]:
    command = dying_with_this_process(command)
    return subprocess.Popen(command, stdin=stdin, stdout=stdout, stderr=stderr, env=env, start_new_session=True)


_making = threading.Lock()
"""Two at once would each make a starter."""


@cache
def _starter() -> Threads:
    """Returns the one thread that starts processes: what ends with its parent ends with the thread that started it.

    An executor's thread would end before what is done at the exit of this process, such as to close a fleet. Raises
    RuntimeError if a thread is refused, before a process is asked for, which would be started later for nobody.
    """
    return Threads(1, "start")
