"""Who the workers are: the entries of ``worker_ips``, which may change, or the localhost workers of a dry run."""

from __future__ import annotations

import sys
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field
from pathlib import Path
from shutil import rmtree
from typing import Any

from digirl_dist.child_process import SOURCE
from digirl_dist.errors import SettingsError
from digirl_dist.fleet.fleet import Fleet
from digirl_dist.fleet.install import Package, ensure_installed
from digirl_dist.fleet.spec import Job, WorkerSpec
from digirl_dist.settings import Settings
from digirl_dist.settings.hosts import SlurmEntry, WorkerEntry, site_address, worker_entries, worker_name
from digirl_dist.slurm.jobs import SlurmAddress
from digirl_dist.ssh.connection import Address, Connection
from digirl_dist.ssh.localhost_server import LocalhostServer
from digirl_dist.storage.events import Events

_EVERY_S = 3.0
_PAUSE_FOR_EACH_LOOK = 50
"""A folder of a run below ``--config-path`` takes long to walk: pauses are at least so many times as long as a look."""

Stamp = Mapping[Path, tuple[int, int]]
"""Time of the last change and size, by file."""


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


def install(worker_config: WorkerConfig, package: Package, events: Events, connection: Connection) -> list[str]:
    """Installs ``package`` on the worker, and returns its Python there."""
    events.emit("installing", worker=worker_config.name, run_path=worker_config.run_path)
    return [ensure_installed(connection, package, worker_config.run_path, worker_config.python)]


def this_python(_: object) -> list[str]:
    """Returns the host's own interpreter with its own package: a localhost worker installs nothing."""
    return ["env", f"PYTHONPATH={SOURCE}", sys.executable]


class WatchedRoster:
    """Looks every few seconds, in a thread of its own, whether the YAML files below ``folder`` changed.

    ``read`` gives the workers that they name now, or raises SettingsError; ``prepare`` makes of a worker what the fleet
    needs. Workers added to the YAML mid-run join; removed ones drain and leave. An entry that changed stays as it was;
    one that was removed and comes back joins once the worker has left.
    """

    def __init__(
        self,
        folder: Path,
        read: Callable[[], Sequence[WorkerConfig]],
        prepare: Callable[[WorkerConfig], tuple[WorkerSpec, Job]],
        fleet: Fleet[WorkerSpec],
        every_s: float = _EVERY_S,
    ) -> None:
        self._folder = folder
        self._read = read
        self._prepare = prepare
        self._fleet = fleet
        self._every_s = every_s
        self._known = set(fleet.workers)
        self._seen: Stamp | None = _stamp(folder)
        self._trouble = ""
        """Why it could not look, as was told last."""
        self._closing = threading.Event()
        self._thread = threading.Thread(target=self._follow, name="watched-roster", daemon=True)

    def start(self) -> None:
        self._thread.start()

    def close(self) -> None:
        self._closing.set()
        if self._thread.is_alive():
            self._thread.join()

    def _follow(self) -> None:
        took_s = 0.0
        while not self._closing.wait(max(self._every_s, _PAUSE_FOR_EACH_LOOK * took_s)):
            began = time.monotonic()
            try:
                self.look_if_changed()
                self._trouble = ""
            except Exception as error:  # else nobody would tell, nor look again
                if (reason := repr(error)) != self._trouble:
                    self._fleet.refuse(f"changes below {self._folder} cannot be followed: {reason}")
                self._trouble = reason
            took_s = time.monotonic() - began

    def look_if_changed(self) -> None:
        stamp = _stamp(self._folder)
        if stamp != self._seen:
            self._seen = None  # so that what an error leaves undone is looked at again
            if self.look():
                self._seen = stamp

    def look(self) -> bool:
        """Brings the fleet to what the files say; a file that cannot be used changes nothing and is told.

        Returns False if something is left for a later look. What else it raises does so at each look.
        """
        try:
            worker_configs = {worker_config.name: worker_config for worker_config in self._read()}
            leaving = {name for name in worker_configs if name in self._fleet.workers} - self._known
            added = {
                name: self._prepare(worker_config)
                for name, worker_config in worker_configs.items()
                if name not in self._known | leaving
            }
        except SettingsError as error:
            self._fleet.refuse(str(error))
            return True
        for name, (spec, job) in added.items():
            self._fleet.add(spec, job)
            self._known.add(name)
        for name in self._known - set(worker_configs):
            self._fleet.release(name)
        self._known = set(worker_configs) - leaving
        if leaving:
            self._seen = None  # they join at a later look
        return not leaving


def _stamp(folder: Path) -> Stamp:
    found = {}
    for path in folder.rglob("*.yaml"):
        try:
            status = path.stat()
        except OSError:  # an editor is replacing it; the next look sees the new one
            continue
        found[path] = (status.st_mtime_ns, status.st_size)
    return found
