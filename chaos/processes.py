"""Finds the processes of a worker from outside, and waits for what they do."""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Iterable
from contextlib import suppress
from pathlib import Path

import psutil


def eventually(condition: Callable[[], object], limit_s: float) -> bool:
    """Waits for ``condition``; returns whether it became true within the limit."""
    asked = time.monotonic()
    deadline = asked + limit_s
    while not condition():
        took_s = time.monotonic() - asked
        if asked + took_s > deadline:
            return False
        time.sleep(min(0.5, max(0.02, 10 * took_s)))  # what is waited for needs the processors itself
        asked = time.monotonic()
    return True


def processes_with(marker: str | Path) -> list[psutil.Process]:
    """Returns the other processes whose command line or working directory names ``marker``."""
    found = []
    for process in psutil.process_iter():
        with suppress(psutil.Error):
            words = [*process.cmdline(), process.cwd()]
            if process.pid != os.getpid() and any(str(marker) in word for word in words):
                found.append(process)
    return found


def running(module: str, among: Iterable[psutil.Process]) -> list[psutil.Process]:
    """Returns the processes that run this Python module, except zombies."""
    found = []
    for process in among:
        with suppress(psutil.Error):
            if module in process.cmdline() and process.status() != psutil.STATUS_ZOMBIE:
                found.append(process)
    return found


def emulators(among: Iterable[psutil.Process]) -> list[psutil.Process]:
    """Returns the emulators themselves, without their guard processes."""
    family = running("digirl_dist.rollout.emulator_process", among)
    pids = {one.pid for one in family}
    return [one for one in family if one.ppid() in pids]  # a guard that has not forked yet is no emulator
