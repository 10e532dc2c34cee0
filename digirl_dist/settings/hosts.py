"""The entries of ``worker_ips``: machines, as people write them."""

from __future__ import annotations

import ipaddress
import re
from collections.abc import Mapping
from dataclasses import dataclass, field, fields
from typing import Any

from digirl_dist.errors import SettingsError
from digirl_dist.settings.configuration import merged
from digirl_dist.settings.missing import MISSING
from digirl_dist.settings.nearest import nearest
from digirl_dist.settings.paths import Elsewhere, FilePath, refuse_bad_paths
from digirl_dist.settings.ranges import Port, shown
from digirl_dist.settings.run import Settings, is_bsize

_FORMS = "write host, user@host, host:port, an IPv6 address, or [IPv6]:port"


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
    emulator: dict[str, Any] = field(default_factory=dict)
    """Overrides of the emulator's settings for this worker."""


def worker_entries(settings: Settings) -> list[WorkerEntry]:
    """Returns the workers of ``worker_ips``. Raises SettingsError naming the entry that is wrong."""
    if not settings.worker_ips:
        raise SettingsError(
            "worker_ips is empty: name machines that you can ssh to, as worker_ips=[10.0.0.2,10.0.0.3], "
            "or try it on this machine with dry_run=true"
        )
    found = [_entry(given, f"worker_ips[{place}]") for place, given in enumerate(settings.worker_ips)]
    names = [worker_name(entry) for entry in found]
    for name in names:
        if names.count(name) > 1:
            raise SettingsError(f"worker_ips names {name!r} twice; give one of them another `name` and `temp_path`")
    return found


def worker_name(entry: WorkerEntry) -> str:
    return re.sub(r"[^A-Za-z0-9.-]", "-", entry.name or entry.host)


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
    if not re.fullmatch(r"[^\s/@\[\]\-][^\s/@\[\]]*", host) or (rest.endswith(":") and ":" not in host):
        raise ValueError("no name or address of a machine")
    if port and not (port.isascii() and port.isdigit() and 0 < int(port[:6]) <= 65_535):
        raise ValueError(f"{shown(port)} is no port: ports are 1 to 65,535")
    return user or None, host, int(port) if port else None


def _entry(given: Any, where: str) -> WorkerEntry:
    if isinstance(given, str):
        given = {"host": given}
    if not isinstance(given, Mapping) or not isinstance(given.get("host"), str):
        raise SettingsError(f"{where}: {shown(given)} must be a host name or a mapping with `host`")
    known = [each.name for each in fields(WorkerEntry)]
    if unknown := [str(key) for key in given if key not in known]:
        hint = f"{nearest(unknown[0], known)} There are {', '.join(known)}"
        raise SettingsError(f"{where}: {given['host']} has no key {unknown[0]!r}; {hint}")
    entry: WorkerEntry = merged(WorkerEntry(), dict(given), where)
    if entry.bsize is not None and not is_bsize(entry.bsize):
        raise SettingsError(f"{where}: bsize={entry.bsize!r} must be a whole number from 1 to 4,096, or auto")
    refuse_bad_paths(entry, emulators_here=False, prefix=f"{where}.")
    return _located(entry, where)


def _located(entry: WorkerEntry, where: str) -> WorkerEntry:
    """Takes a user and a port out of the host; two workers of one machine at several ports have several names."""
    try:
        user, host, port = split_host(entry.host)
    except ValueError as error:
        raise SettingsError(f"{where}: {shown(entry.host)} is no machine ({error}): {_FORMS}") from error
    for key, own, other in (("port", entry.port, port), ("username", entry.username, user)):
        if own is not None and other is not None and own != other:
            raise SettingsError(f"{where}: {shown(entry.host)} contradicts {key}={own}: leave one of them out")
    if port is not None and entry.name is None:
        entry.name = f"{host}-{port}"
    entry.host, entry.port, entry.username = host, entry.port or port, entry.username or user
    return entry
