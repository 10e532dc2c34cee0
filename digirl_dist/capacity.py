"""Computes how many emulators a machine can run (``bsize: auto``), from what its control groups leave to this process.

Imports the standard library only: ``digirl-dist doctor`` runs this file on machines that have no package yet.
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path, PurePosixPath

_RESERVED_MIB = 1024
"""Memory left for the worker program with its policy and for the machine itself."""
_RESERVED_SHARE = 0.1
"""Share of the free memory that is left besides, because free memory fluctuates."""
POLICY_MIB = 700
"""Memory of the worker program with torch and a small policy."""
_UNESCAPED = re.compile(r"\\([0-7]{3})")


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
        groups = own_groups(_read(Path("/proc/self/cgroup")), _read(Path("/proc/self/mountinfo")))
        cores = min([float(_cores()), *core_limits(groups)])
        return cls(cores / sharers, min([_free_memory(), *memory_limits(groups)]) / 2**20 / sharers)


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


def pool_size(slots: int | None, machine: Machine, needs: Needs) -> PoolSize:
    """Returns the wanted number of slots; None: as many as the machine carries.

    Raises SettingsError for more than its free memory carries.
    """
    if slots is None:
        return choose(machine, needs)
    most = most_slots(machine.memory_mib, needs.memory_mib)
    if slots > max(1, most):
        from digirl_dist.errors import SettingsError  # not on machines without the package

        taken = POLICY_MIB + slots * needs.memory_mib
        raise SettingsError(
            f"bsize={slots} emulators take about {taken / 1024:.1f} GB of memory, and "
            f"{machine.memory_mib / 1024:.1f} GB are free -> set bsize={max(1, most)} or bsize=auto"
        )
    return PoolSize(slots, "")


def most_slots(free_mib: float, emulator_mib: float) -> int:
    """Returns how many emulators fit into the memory beside the program and its policy."""
    return int((free_mib - POLICY_MIB) // emulator_mib)


def core_limits(groups: Sequence[Path]) -> Iterator[float]:
    """Yields the number of cores that each control group allows, in version 1 or 2; none for one without a limit."""
    for group in groups:
        words = _read(group / "cpu.max").split() or [
            _read(group / f"cpu.cfs_{each}_us") for each in ("quota", "period")
        ]
        with suppress(ValueError):  # "max", or no file
            quota, period = map(int, words)
            if quota > 0 and period > 0:
                yield quota / period


def memory_limits(groups: Sequence[Path]) -> Iterator[int]:
    """Yields the free bytes below each limit of a control group, in version 1 or 2; file caches count as free."""
    for group in groups:
        counted: dict[str, str] = dict(re.findall(r"^(\w+) (\d+)$", _read(group / "memory.stat"), re.MULTILINE))
        cache = counted.get("total_inactive_file") or counted.get("inactive_file", "0")  # version 1 totals subgroups
        used = _read(group / "memory.current") or _read(group / "memory.usage_in_bytes")
        for name in ("memory.max", "memory.high", "memory.limit_in_bytes"):
            with suppress(ValueError):  # "max", or no file
                yield max(0, int(_read(group / name)) - int(used or 0) + int(cache))


def own_groups(memberships: str, mounts: str) -> list[Path]:
    """Returns the folders of a process's control groups and of their ancestors, of whatever version.

    ``memberships`` and ``mounts`` are its /proc/PID/cgroup and /proc/PID/mountinfo. In a container, the mounted folder
    may be the group itself, or a group above it whose path the container does not know.
    """
    found: dict[Path, None] = {}
    own = [line.split(":", 2)[1:] for line in memberships.splitlines() if line.count(":") > 1]
    for line in mounts.splitlines():
        before, _, after = line.partition(" - ")
        kind, _, options = [*after.split(" "), "", "", ""][:3]
        if kind not in ("cgroup", "cgroup2") or len(before.split(" ")) < 5:
            continue
        root, place = (_UNESCAPED.sub(lambda octal: chr(int(octal[1], 8)), word) for word in before.split(" ")[3:5])
        for controllers, path in own:
            if set(controllers.split(",")) <= set(options.split(",")) if kind == "cgroup" else not controllers:
                found.update(dict.fromkeys(_from_group_to_mount(Path(place), root, path)))
    return list(found)


def _from_group_to_mount(place: Path, root: str, path: str) -> Iterator[Path]:
    """Yields the folder of the group ``path`` where ``root`` is mounted at ``place``, and those above it."""
    inner = PurePosixPath(path)
    below = inner.relative_to(root) if inner.is_relative_to(root) and ".." not in inner.parts else PurePosixPath()
    yield from (place / each for each in (below, *below.parents))


def _cores() -> int:
    """Returns the cores that this process may use."""
    with suppress(AttributeError, OSError):  # not every Python build, nor every kernel, has it
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1


def _free_memory() -> int:
    """Returns the machine's free bytes."""
    if found := re.search(r"^MemAvailable:\s+(\d+) kB", _read(Path("/proc/meminfo")), re.MULTILINE):
        return int(found[1]) << 10
    return os.sysconf("SC_AVPHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")


def _read(path: Path) -> str:
    """Returns a file's text; empty if there is no such file, as not every group has every limit."""
    try:
        return path.read_text().strip()
    except OSError:
        return ""
