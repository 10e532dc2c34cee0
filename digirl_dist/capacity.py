"""Computes how many emulators a machine can run (``bsize: auto``), and assigns them its cores."""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from digirl_dist.errors import SettingsError

_RESERVED_MIB = 1024
"""Memory left for the worker program with its policy and for the machine itself."""
_RESERVED_SHARE = 0.1
"""Share of the free memory that is left besides, because free memory fluctuates."""
POLICY_MIB = 700
"""Memory of the worker program with torch and a small policy."""
_CGROUPS = Path("/sys/fs/cgroup")


def let_waiting_threads_sleep() -> None:
    """Makes the threads of torch sleep, not spin, while they wait for each other; torch must not be imported yet.

    Where emulators or other programs use the same cores, a thread that spins keeps the others of its own computation
    from running: an update took four times as long. A user's own ``OMP_WAIT_POLICY`` is kept.
    """
    os.environ.setdefault("OMP_WAIT_POLICY", "PASSIVE")


@dataclass(frozen=True)
class Needs:
    """One emulator's use: the memory of all its processes in MiB, and the number of cores that it keeps busy."""

    memory_mib: float = 400.0
    cores: float = 0.5


TYPICAL = Needs()


@dataclass(frozen=True)
class Machine:
    """A machine's resources. ``memory_mib`` is its free memory."""

    cores: float
    memory_mib: float

    @classmethod
    def here(cls, sharers: int = 1) -> Machine:
        """Returns the resources that this process may use (affinity and cgroups), divided by ``sharers``."""
        import psutil

        groups = _own_groups()
        cores = min([float(len(os.sched_getaffinity(0))), *core_limits(groups)])
        memory = min([psutil.virtual_memory().available, *memory_limits(groups)])
        return cls(cores / sharers, memory / 2**20 / sharers)


@dataclass(frozen=True)
class PoolSize:
    """A number of slots, and the reason why it is not larger."""

    slots: int
    reason: str


def choose(machine: Machine, needs: Needs) -> PoolSize:
    """Returns how many slots the machine carries, at least one."""
    by_cores = int(machine.cores / needs.cores)
    by_memory = int((machine.memory_mib * (1 - _RESERVED_SHARE) - _RESERVED_MIB) / needs.memory_mib)
    slots = max(1, min(by_cores, by_memory))
    reason = (
        f"{machine.cores:g} cores carry {max(0, by_cores)}, {machine.memory_mib:.0f} MiB of free memory carry "
        f"{max(0, by_memory)} at {needs.memory_mib:g} MiB each"
    )
    return PoolSize(slots, reason)


def pool_size(slots: int | None, machine: Machine, needs: Needs, name: str = "") -> PoolSize:
    """Returns the wanted number of slots; None: as many as the machine carries.

    Raises SettingsError for more than its free memory carries. ``name`` is that of the machine.
    """
    if slots is None:
        return choose(machine, needs)
    most = most_slots(machine.memory_mib, needs.memory_mib)
    if slots > max(1, most):
        taken = POLICY_MIB + slots * needs.memory_mib
        raise SettingsError(
            f"{name or 'this machine'}: bsize={slots} emulators take about {taken / 1024:.1f} GB of memory, and "
            f"{machine.memory_mib / 1024:.1f} GB are free -> set bsize={max(1, most)} or bsize=auto"
        )
    return PoolSize(slots, "")


def most_slots(free_mib: float, emulator_mib: float) -> int:
    """Returns how many emulators fit into the memory beside the program and its policy."""
    return int((free_mib - POLICY_MIB) // emulator_mib)


def core_limits(groups: Sequence[Path]) -> Iterator[float]:
    """Yields the number of cores that each control group (version 2) allows."""
    for group in groups:
        quota, period = (_read(group / "cpu.max") or "max 100000").split()
        if quota != "max":
            yield int(quota) / int(period)


def memory_limits(groups: Sequence[Path]) -> Iterator[int]:
    """Yields the free bytes below each control group's limit; file caches count as free."""
    for group in groups:
        limit = _read(group / "memory.max") or "max"
        if limit != "max":
            counted = dict(line.split() for line in _read(group / "memory.stat").splitlines())
            used = int(_read(group / "memory.current") or 0) - int(counted.get("inactive_file", 0))
            yield max(0, int(limit) - used)


def _own_groups() -> list[Path]:
    """Returns this process's control group and its ancestors."""
    lines = _read(Path("/proc/self/cgroup")).splitlines()
    own = [_CGROUPS / line.removeprefix("0::").strip("/") for line in lines if line.startswith("0::")]
    return [folder for group in own for folder in (group, *group.parents) if folder.is_relative_to(_CGROUPS)]


def _read(path: Path) -> str:
    """Returns a file's text; empty if there is no such file, as not every group has every limit."""
    try:
        return path.read_text().strip()
    except OSError:
        return ""
