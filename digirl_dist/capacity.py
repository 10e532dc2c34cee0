"""How many emulators a machine carries, for ``bsize: auto``."""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

_RESERVED_MIB = 1024
"""Left for the worker program with its policy, and for the machine itself …"""
_RESERVED_SHARE = 0.1
"""… and this share of what is free, as free memory comes and goes."""
_CGROUPS = Path("/sys/fs/cgroup")


@dataclass(frozen=True)
class Needs:
    """What one emulator takes: memory with all its processes, in MiB, and the share of a core that it keeps busy."""

    memory_mib: float = 400.0
    cores: float = 0.5


TYPICAL = Needs()


@dataclass(frozen=True)
class Machine:
    """What there is to share out. ``memory_mib`` is what is free now."""

    cores: float
    memory_mib: float

    @classmethod
    def here(cls, sharers: int = 1) -> Machine:
        """This machine as far as this process may use it (affinity and cgroups), one part of ``sharers`` equal ones."""
        import psutil

        groups = _own_groups()
        cores = min([float(len(os.sched_getaffinity(0))), *core_limits(groups)])
        memory = min([psutil.virtual_memory().available, *memory_limits(groups)])
        return cls(cores / sharers, memory / 2**20 / sharers)


@dataclass(frozen=True)
class Choice:
    """How many slots, and why not more."""

    slots: int
    reason: str


def choose(machine: Machine, needs: Needs) -> Choice:
    """At least one, whatever the machine: whether that one works is then seen."""
    by_cores = int(machine.cores / needs.cores)
    by_memory = int((machine.memory_mib * (1 - _RESERVED_SHARE) - _RESERVED_MIB) / needs.memory_mib)
    slots = max(1, min(by_cores, by_memory))
    reason = (
        f"{machine.cores:g} cores carry {max(0, by_cores)}, {machine.memory_mib:.0f} MiB of free memory carry "
        f"{max(0, by_memory)} at {needs.memory_mib:g} MiB each"
    )
    return Choice(slots, reason)


def core_limits(groups: Sequence[Path]) -> Iterator[float]:
    """Cores that each control group (version 2) allows."""
    for group in groups:
        quota, period = (_read(group / "cpu.max") or "max 100000").split()
        if quota != "max":
            yield int(quota) / int(period)


def memory_limits(groups: Sequence[Path]) -> Iterator[int]:
    """Bytes that are left below the limit of each control group; cached files give way to emulators."""
    for group in groups:
        limit = _read(group / "memory.max") or "max"
        if limit != "max":
            counted = dict(line.split() for line in _read(group / "memory.stat").splitlines())
            used = int(_read(group / "memory.current") or 0) - int(counted.get("inactive_file", 0))
            yield max(0, int(limit) - used)


def _own_groups() -> list[Path]:
    """The control group of this process and all those around it."""
    lines = _read(Path("/proc/self/cgroup")).splitlines()
    own = [_CGROUPS / line.removeprefix("0::").strip("/") for line in lines if line.startswith("0::")]
    return [folder for group in own for folder in (group, *group.parents) if folder.is_relative_to(_CGROUPS)]


def _read(path: Path) -> str:
    """Empty where there is no such file: not every group has every limit, and some systems have none."""
    try:
        return path.read_text().strip()
    except OSError:
        return ""
