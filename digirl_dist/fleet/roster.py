"""Who the workers are: the entries of ``worker_ips``, or the localhost workers of a dry run."""

from __future__ import annotations

import re
import sys
from collections.abc import Callable, Mapping
from contextlib import ExitStack
from dataclasses import dataclass, field
from pathlib import Path
from shutil import rmtree
from typing import Any

from digirl_dist.child_process import SOURCE
from digirl_dist.errors import SettingsError
from digirl_dist.fleet.install import Package, ensure_installed
from digirl_dist.settings import Settings, is_bsize
from digirl_dist.ssh.connection import Address, Connection
from digirl_dist.ssh.localhost_server import LocalhostServer
from digirl_dist.storage.events import Events

_KEYS = ("host", "name", "port", "username", "key", "bsize", "temp_path", "run_path", "python", "emulator")


@dataclass(frozen=True)
class WorkerConfig:
    """One worker as the configuration describes it, every default filled in."""

    address: Address
    slots: int | None
    """None: as many as the worker chooses."""
    temp_path: str
    run_path: str
    python: str
    emulator: dict[str, Any] = field(default_factory=dict)
    """Overrides of the emulator's settings for this worker."""

    @property
    def name(self) -> str:
        return self.address.name


def worker_configs(settings: Settings) -> list[WorkerConfig]:
    """Returns the workers of ``worker_ips``. Raises SettingsError naming the entry that is wrong."""
    if not settings.worker_ips:
        raise SettingsError(
            "worker_ips is empty: name machines that you can ssh to, as worker_ips=[10.0.0.2,10.0.0.3], "
            "or try it on this machine with dry_run=true"
        )
    found = [_worker_config(entry, settings) for entry in settings.worker_ips]
    names = [worker_config.name for worker_config in found]
    for name in names:
        if names.count(name) > 1:
            raise SettingsError(f"worker_ips names {name!r} twice; give one of them another `name` and `temp_path`")
    return found


def _worker_config(entry: Any, settings: Settings) -> WorkerConfig:
    if isinstance(entry, str):
        entry = {"host": entry}
    if not isinstance(entry, Mapping) or "host" not in entry:
        raise SettingsError(f"worker_ips: {entry!r} must be a host name or a mapping with `host`")
    unknown = sorted(set(entry) - set(_KEYS))
    if unknown:
        raise SettingsError(f"worker_ips: {entry['host']} has no key {unknown[0]!r}; there are {', '.join(_KEYS)}")
    bsize = entry.get("bsize", settings.bsize)
    if not is_bsize(bsize):
        raise SettingsError(
            f"worker_ips: bsize of {entry['host']} must be a whole number above 0 or auto, not {bsize!r}"
        )
    address = Address(
        name=re.sub(r"[^A-Za-z0-9.-]", "-", str(entry.get("name", entry["host"]))),
        host=str(entry["host"]),
        port=entry.get("port"),
        user=entry.get("username", settings.worker_username),
        key=None if entry.get("key") is None else str(Path(entry["key"]).expanduser()),
    )
    return WorkerConfig(
        address=address,
        slots=_slots(bsize),
        temp_path=str(entry.get("temp_path", settings.worker_temp_path)),
        run_path=str(entry.get("run_path", settings.worker_run_path)),
        python=str(entry.get("python", settings.worker_python)),
        emulator=dict(entry.get("emulator", {})),
    )


def _slots(bsize: int | str) -> int | None:
    return bsize if isinstance(bsize, int) else None


def localhost_worker_configs(settings: Settings, folder: Path, stack: ExitStack) -> list[WorkerConfig]:
    """Starts the dry run's SSH servers; ``stack`` stops them and removes ``folder`` at the end."""
    if settings.dry_run_workers < 1:
        raise SettingsError(f"dry_run_workers={settings.dry_run_workers}: at least one is needed")
    stack.callback(rmtree, folder, ignore_errors=True)
    found = []
    for number in range(settings.dry_run_workers):
        name = f"localhost-{number}"
        address = stack.enter_context(LocalhostServer(name, folder / "ssh" / name))
        jobs = str(folder / "jobs")
        found.append(WorkerConfig(address, _slots(settings.bsize), jobs, run_path="", python=sys.executable))
    return found


def installer(worker_config: WorkerConfig, package: Package, events: Events) -> Callable[[Connection], list[str]]:
    """Returns a function that installs ``package`` on the worker and returns its Python there."""

    def install(connection: Connection) -> list[str]:
        events.emit("installing", worker=worker_config.name, run_path=worker_config.run_path)
        return [ensure_installed(connection, package, worker_config.run_path, worker_config.python)]

    return install


def this_python(_: object) -> list[str]:
    """Returns the host's own interpreter with its own package: a localhost worker installs nothing."""
    return ["env", f"PYTHONPATH={SOURCE}", sys.executable]
