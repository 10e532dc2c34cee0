"""Who the workers are: the entries of ``worker_ips``, or the localhost workers of a dry run."""

from __future__ import annotations

import sys
from collections.abc import Callable
from contextlib import ExitStack
from dataclasses import dataclass, field
from pathlib import Path
from shutil import rmtree
from typing import Any

from digirl_dist.child_process import SOURCE
from digirl_dist.errors import SettingsError
from digirl_dist.fleet.install import Package, ensure_installed
from digirl_dist.settings import Settings
from digirl_dist.settings.hosts import SlurmEntry, WorkerEntry, site_address, worker_entries, worker_name
from digirl_dist.slurm.address import SlurmAddress
from digirl_dist.ssh.connection import Address, Connection
from digirl_dist.ssh.localhost_server import LocalhostServer
from digirl_dist.storage.events import Events


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
    site: str | None = None
    site_address: tuple[str, int] | None = None

    @property
    def name(self) -> str:
        return self.address.name


def worker_configs(settings: Settings) -> list[WorkerConfig]:
    """Returns the workers of ``worker_ips``. Raises SettingsError naming the entry that is wrong."""
    return [_worker_config(entry, settings) for entry in worker_entries(settings)]


def _worker_config(entry: WorkerEntry, settings: Settings) -> WorkerConfig:
    return WorkerConfig(
        address=_address(entry, settings),
        slots=_slots(entry.bsize or settings.bsize),
        temp_path=entry.temp_path or settings.worker_temp_path,
        run_path=entry.run_path or settings.worker_run_path,
        python=entry.python or settings.worker_python,
        emulator=entry.emulator,
        site=entry.site if settings.relay == "auto" else None,
        site_address=site_address(entry),
    )


def _address(entry: WorkerEntry, settings: Settings) -> Address:
    name = worker_name(entry)
    if isinstance(entry, SlurmEntry):
        cpus = settings.slurm.cpus or _slots(entry.bsize or settings.bsize)
        folder = entry.temp_path or settings.worker_temp_path
        return SlurmAddress(name, entry.host, node=entry.node, folder=folder, cpus=cpus)
    user = entry.username or settings.worker_username
    key = None if entry.key is None else str(Path(entry.key).expanduser())
    return Address(name, entry.host, entry.port, user, key)


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
