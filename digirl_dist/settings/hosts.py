"""The entries of ``worker_ips``: machines, as people write them."""

from __future__ import annotations

import ipaddress
import os
import re
from collections.abc import Iterator, Mapping
from dataclasses import asdict, dataclass, field
from typing import Any

from digirl_dist.errors import SettingsError
from digirl_dist.settings.conversion import merged
from digirl_dist.settings.expert import MISSING
from digirl_dist.settings.paths import Elsewhere, FilePath, refuse_bad_paths
from digirl_dist.settings.ranges import Port, shown
from digirl_dist.settings.run import Settings, is_bsize

_FORMS = "write host, user@host, host:port, an IPv6 address, [IPv6]:port, or slurm:4"
_SLURM = re.compile(r"slurm(?::(.*))?", re.DOTALL)
_MOST_NODES = 1024
_LONGEST_NAME = 100
"""The name is a part of those of files and episodes."""


@dataclass
class WorkerEntry:
    """One worker of ``worker_ips``; null: as the keys of the top level, or ``ssh``, have it."""

    host: str = MISSING
    name: str | None = None
    port: Port | None = None
    username: str | None = None
    key: FilePath | None = None
    """The file of a private key on the host."""
    bsize: Any = None
    temp_path: Elsewhere | None = None
    run_path: Elsewhere | None = None
    python: str | None = None
    site: str | None = None
    """Workers with the same word here reach each other over SSH, faster than the host reaches them (see ``relay``)."""
    site_address: str | None = None
    """Where the others of its site reach it, as host or host:port; null: where the host does."""
    emulator: dict[str, Any] = field(default_factory=dict)
    """Overrides of the emulator's settings for this worker."""


@dataclass
class SlurmEntry(WorkerEntry):
    """A worker on a node that Slurm gives."""

    node: int | None = None
    """The node's place in this allocation, from 0; None: that of a job of its own."""


def worker_entries(settings: Settings) -> list[WorkerEntry]:
    """Returns the workers of ``worker_ips``. Raises SettingsError naming the entry that is wrong."""
    if not settings.worker_ips:
        raise SettingsError(
            "worker_ips is empty: name machines that you can ssh to, as worker_ips=[10.0.0.2,10.0.0.3], "
            "or try it on this machine with dry_run=true"
        )
    found = [
        entry for place, given in enumerate(settings.worker_ips) for entry in _entries(given, f"worker_ips[{place}]")
    ]
    names = [worker_name(entry) for entry in found]
    for name in names:
        if names.count(name) > 1:
            raise SettingsError(f"worker_ips names {name!r} twice; give one of them another `name` and `temp_path`")
        if len(name) > _LONGEST_NAME:
            raise SettingsError(
                f"worker_ips: {name!r} has {len(name)} characters, of at most {_LONGEST_NAME}; give it a shorter `name`"
            )
    return found


def worker_name(entry: WorkerEntry) -> str:
    return re.sub(r"[^A-Za-z0-9.-]", "-", entry.name or entry.host).strip("-") or "worker"


def site_address(entry: WorkerEntry) -> tuple[str, int] | None:
    """Returns where other workers of its site reach this one, if the entry says so. Raises ValueError."""
    if entry.site_address is None:
        return None
    user, host, port = split_host(entry.site_address)
    if user is not None:
        raise ValueError("it has a user, and the worker has one already")
    return host, port or 22


def split_host(text: str) -> tuple[str | None, str, int | None]:
    """Returns user, host and port of what people write. Raises ValueError saying what is wrong."""
    user, _, rest = text.strip().rpartition("@")
    host, port = rest, ""
    if bracketed := re.fullmatch(r"\[([^]]*)\](?::(.*))?", rest):
        host, port = bracketed[1], bracketed[2] or ""
        ipaddress.IPv6Address(host)
    elif rest.count(":") == 1:
        host, port = rest.split(":")
    elif ":" in rest:
        ipaddress.IPv6Address(rest)
    is_name = text.strip().isprintable() and re.fullmatch(r"[^\s/@\[\]\-][^\s/@\[\]]*", host)
    if not is_name or (rest.endswith(":") and ":" not in host):
        raise ValueError("no name or address of a machine")
    if port and not (port.isascii() and port.isdigit() and 0 < int(port[:6]) <= 65_535):
        raise ValueError(f"{shown(port)} is no port: ports are 1 to 65,535")
    return user or None, host, int(port) if port else None


def _entries(given: Any, where: str) -> Iterator[WorkerEntry]:
    entry = _entry(given, where)
    if found := _SLURM.fullmatch(entry.host):
        yield from _slurm_entries(entry, found[1], where)
    else:
        yield _located(entry, where)


def _slurm_entries(entry: WorkerEntry, count: str | None, where: str) -> Iterator[SlurmEntry]:
    """Yields ``count`` workers with a job each; without a count those of the allocation in which this process is."""
    if given := [key for key in ("port", "username", "key", "site", "site_address") if getattr(entry, key) is not None]:
        raise SettingsError(f"{where}: {entry.host} takes no {given[0]}, as srun carries its sessions: leave it out")
    nodes = os.environ.get("SLURM_JOB_NUM_NODES", "") if count is None else count
    if count is None and not nodes:
        raise SettingsError(
            f"{where}: slurm stands for the nodes of an allocation, and this command runs in none: "
            "start it by sbatch or salloc, or write slurm:4 for four jobs"
        )
    if not re.fullmatch("[0-9]{1,4}", nodes) or not 0 < int(nodes) <= _MOST_NODES:
        raise SettingsError(f"{where}: {shown(entry.host)} must have a number of nodes from 1 to {_MOST_NODES:,}")
    name = entry.name or "slurm"
    for number in range(int(nodes)):
        values = {**asdict(entry), "host": "slurm", "name": f"{name}-{number}"}
        yield SlurmEntry(**values, node=number if count is None else None)


def _entry(given: Any, where: str) -> WorkerEntry:
    if isinstance(given, str):
        given = {"host": given}
    if not isinstance(given, Mapping) or not isinstance(given.get("host"), str):
        raise SettingsError(
            f"{where}: {shown(given)} must be a host name or a mapping with `host`, as {{host: a, bsize: 8}}"
        )
    entry: WorkerEntry = merged(WorkerEntry(), dict(given), where)
    if entry.bsize is not None and not is_bsize(entry.bsize):
        raise SettingsError(f"{where}: bsize={entry.bsize!r} must be a whole number from 1 to 4,096, or auto")
    refuse_bad_paths(entry, emulators_here=False, prefix=f"{where}.")
    return entry


def _located(entry: WorkerEntry, where: str) -> WorkerEntry:
    """Takes a user and a port out of the host; two workers of one machine at several ports have several names."""
    try:
        user, host, port = split_host(entry.host)
    except ValueError as error:
        raise SettingsError(f"{where}: {shown(entry.host)} is no machine ({error}): {_FORMS}") from error
    for key, own, other in (("port", entry.port, port), ("username", entry.username, user)):
        if own is not None and other is not None and own != other:
            raise SettingsError(f"{where}: {shown(entry.host)} contradicts {key}={own}: leave one of them out")
    if entry.username is not None and not entry.username.isprintable():
        raise SettingsError(f"{where}: username={entry.username!r:.100} is no name of a user")
    if port is not None and entry.name is None:
        entry.name = f"{host}-{port}"
    try:
        site_address(entry)
    except ValueError as error:
        raise SettingsError(f"{where}: site_address={shown(entry.site_address)} is no machine ({error})") from error
    if entry.site_address is not None and entry.site is None:
        raise SettingsError(f"{where}: site_address without site says nothing: give the worker a site")
    entry.host, entry.port, entry.username = host, entry.port or port, entry.username or user
    return entry
