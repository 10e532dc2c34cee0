"""Waiting for what other processes do, and finding them."""

from __future__ import annotations

import os
import time
from collections.abc import Callable
from pathlib import Path

import psutil


def eventually(condition: Callable[[], object], limit_s: float = 15.0, what: str = "the condition") -> None:
    """Wait for ``condition`` and fail when it does not come true."""
    deadline = time.monotonic() + limit_s
    while not condition():
        assert time.monotonic() < deadline, f"{what} did not come true within {limit_s:g} s"
        time.sleep(0.02)


def processes_with(marker: str | Path) -> list[psutil.Process]:
    """Processes whose command line or environment names ``marker``, such as a test's own folder."""
    found = []
    for process in psutil.process_iter():
        try:
            words = [*process.cmdline(), *process.environ().values()]
            if process.pid != os.getpid() and any(str(marker) in word for word in words):
                found.append(process)
        except psutil.Error:
            continue
    return [process for process in found if process.is_running() and process.status() != psutil.STATUS_ZOMBIE]


def nothing_is_left_of(marker: str | Path) -> None:
    """Every process with ``marker`` has ended, or is about to: an interpreter takes a moment to its end."""
    eventually(lambda: not processes_with(marker), 5, "the end of all processes")
