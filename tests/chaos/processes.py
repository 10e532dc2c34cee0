"""Finds the processes of a worker from outside, and waits for what they do."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable
from contextlib import suppress
from pathlib import Path

import psutil

from benchmarks.sshd import eventually as eventually


def processes_with(marker: str | Path, environment: bool = False) -> list[psutil.Process]:
    """Returns the others, except zombies, whose command line or working directory, or environment, names ``marker``."""

    def names_it(process: psutil.Process) -> bool:
        words = [*process.cmdline(), process.cwd(), *(process.environ().values() if environment else ())]
        return process.pid != os.getpid() and any(str(marker) in word for word in words)

    return _living(psutil.process_iter(), names_it)


def running(module: str, among: Iterable[psutil.Process]) -> list[psutil.Process]:
    """Returns the processes that run this Python module, except zombies."""
    return _living(among, lambda process: module in process.cmdline())


def runs(pid: int) -> bool:
    """Whether such a process exists that is no zombie."""
    try:
        return psutil.Process(pid).status() != psutil.STATUS_ZOMBIE
    except psutil.Error:
        return False


def command_line(process: psutil.Process) -> str:
    """Empty for one that has ended meanwhile, or is about to."""
    try:
        return " ".join(process.cmdline())
    except psutil.Error:
        return ""


def frozen(among: Iterable[psutil.Process]) -> list[psutil.Process]:
    """Returns those that SIGSTOP has stopped."""
    return _living(among, lambda process: process.status() == psutil.STATUS_STOPPED)


def _living(among: Iterable[psutil.Process], wanted: Callable[[psutil.Process], bool]) -> list[psutil.Process]:
    found = []
    for process in among:
        with suppress(psutil.Error):  # it has ended meanwhile
            if process.status() != psutil.STATUS_ZOMBIE and wanted(process):
                found.append(process)
    return found


def emulators(among: Iterable[psutil.Process]) -> list[psutil.Process]:
    """Returns the emulators themselves, without their guard processes."""
    family = running("digirl_dist.rollout.emulator_process", among)
    pids = {one.pid for one in family}
    return _living(family, lambda one: one.ppid() in pids)  # a guard that has not forked yet is no emulator
