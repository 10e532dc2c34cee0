"""Waiting for what other processes do, and finding them."""

from __future__ import annotations

import os
import resource
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path

import psutil

from chaos import processes
from chaos.processes import command_line as command_line

_LEAST_S = 120.0
"""A limit only ends a test that fails: a short one saves nothing, and fails a good test on a loaded machine."""


def eventually(condition: Callable[[], object], limit_s: float = _LEAST_S, what: str = "the condition") -> None:
    """Waits for ``condition``, for ``limit_s`` or ``_LEAST_S`` if that is more, and then fails."""
    limit_s = max(limit_s, _LEAST_S)
    assert processes.eventually(condition, limit_s), f"{what} did not come true within {limit_s:g} s"


processes_with = partial(processes.processes_with, environment=True)
"""Processes whose command line, working directory or environment names a marker, such as a test's own folder."""


def descendants_with(marker: str | Path) -> list[psutil.Process]:
    """The same of this process's own: other tests run beside this one, and have programs of the same name."""
    own = {one.pid for one in psutil.Process().children(recursive=True)}
    return [one for one in processes_with(marker) if one.pid in own]


def nothing_is_left_of(marker: str | Path) -> None:
    """Every process with ``marker`` has ended, or is about to: an interpreter takes a moment to its end.

    The limit is far below the minute after which an orphan would end by itself.
    """
    assert processes.eventually(lambda: not processes_with(marker), 30), processes_with(marker)


@contextmanager
def descriptors_left(count: int) -> Iterator[None]:
    """Lets this process open so many more descriptors, about, while the block lasts."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    os.close(lowest := os.dup(0))
    resource.setrlimit(resource.RLIMIT_NOFILE, (lowest + count, hard))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))


def ssh_server(name: str) -> psutil.Process:
    """The SSH server of a localhost worker that this process started."""
    [found] = [one for one in descendants_with("digirl_dist.ssh.localhost_server") if command_line(one).endswith(name)]
    return found


def kill_a_worker_program(folder: str) -> None:
    """Kills the program of one worker of the dry run in this folder, as soon as there is one."""

    def program() -> psutil.Process | None:
        for process in psutil.process_iter(["cmdline"]):
            words = process.info["cmdline"] or []
            if "digirl_dist.worker_program.program" in words and any(folder in word for word in words):
                return process
        return None

    eventually(lambda: program() is not None, 20)
    if (found := program()) is not None:
        found.kill()
