"""Workers that are added to, or removed from, the configuration while the run goes on."""

from __future__ import annotations

import threading
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

from digirl_dist.errors import SettingsError
from digirl_dist.fleet.fleet import Fleet
from digirl_dist.fleet.roster import WorkerConfig
from digirl_dist.fleet.spec import Job, WorkerSpec

_EVERY_S = 3.0

Stamp = Mapping[Path, tuple[int, int]]
"""Time of the last change and size, by file."""


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
        while not self._closing.wait(self._every_s):
            try:
                self.look_if_changed()
                self._trouble = ""
            except Exception as error:  # else nobody would tell, nor look again
                self._cannot(f"changes below {self._folder} cannot be followed: {error!r}")

    def _cannot(self, reason: str) -> None:
        if reason != self._trouble:
            self._fleet.refuse(reason)
        self._trouble = reason

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
