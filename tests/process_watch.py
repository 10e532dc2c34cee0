"""Waiting for what other processes do, and finding them."""

from __future__ import annotations

import os
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

import psutil

from chaos import processes

_LEAST_S = 120.0
"""A limit only ends a test that fails: a short one saves nothing, and fails a good test on a loaded machine."""


def eventually(condition: Callable[[], object], limit_s: float = _LEAST_S, what: str = "the condition") -> None:
    """Waits for ``condition``, for ``limit_s`` or ``_LEAST_S`` if that is more, and then fails."""
    limit_s = max(limit_s, _LEAST_S)
    assert processes.eventually(condition, limit_s), f"{what} did not come true within {limit_s:g} s"


def processes_with(marker: str | Path) -> list[psutil.Process]:
    """Processes whose command line or environment names ``marker``, such as a test's own folder."""
    found = []
    for process in psutil.process_iter():
        with suppress(psutil.Error):  # it has ended meanwhile
            words = [*process.cmdline(), *process.environ().values()]
            if process.pid != os.getpid() and any(str(marker) in word for word in words):
                found.append(process)
    return [process for process in found if _is_alive(process)]


def _is_alive(process: psutil.Process) -> bool:
    try:
        return process.is_running() and process.status() != psutil.STATUS_ZOMBIE
    except psutil.Error:
        return False


def descendants_with(marker: str | Path) -> list[psutil.Process]:
    """The same of this process's own: other tests run beside this one, and have programs of the same name."""
    own = {one.pid for one in psutil.Process().children(recursive=True)}
    return [one for one in processes_with(marker) if one.pid in own]


def command_line(process: psutil.Process) -> str:
    """Empty for one that has ended meanwhile, or is about to."""
    try:
        return " ".join(process.cmdline())
    except psutil.Error:
        return ""


def nothing_is_left_of(marker: str | Path) -> None:
    """Every process with ``marker`` has ended, or is about to: an interpreter takes a moment to its end."""
    eventually(lambda: not processes_with(marker), 5, "the end of all processes")
