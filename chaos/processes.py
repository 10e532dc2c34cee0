"""Finds the processes of a worker from outside."""

from __future__ import annotations

import os
from collections.abc import Iterable
from contextlib import suppress
from pathlib import Path

import psutil


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
