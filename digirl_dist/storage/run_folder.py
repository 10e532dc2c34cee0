"""The folder of a run (``save_path``): its files, its identity, and a lock that admits one host at a time."""

from __future__ import annotations

import os
import platform
import time
import uuid
from contextlib import suppress
from io import FileIO
from itertools import islice
from pathlib import Path

from digirl_dist.errors import NoRunError, RunFolderError
from digirl_dist.settings import regular_file
from digirl_dist.settings.nearest import nearest
from digirl_dist.settings.paths import expanded
from digirl_dist.storage import atomic_files, file_system
from digirl_dist.storage.events import Events, Listener
from digirl_dist.storage.run_identity import identity

_LOCK = ".lock"
_READER_S = 0.1
_MOST_FILES = 200_000
FOLDERS = (
    *(
        "checkpoints",
        "checkpoints/updates",
        "evaluation",
        "media",
        "provenance",
        "trajectories",
        "trajectories/.closed",
    ),
    *("trajectories/.landing", "trajectories/.landing/evaluate", "trajectories/.landing/measure"),
    "trajectories/.refused",
)
"""The folders of a run."""


def existing_run(folder: str | Path) -> Path:
    """Returns the folder of a run, which runs always name in this way. Raises NoRunError naming runs that are near."""
    found = expanded(folder)
    try:
        if (found / "config.yaml").is_file():
            _refuse_links_out(found)
            return found
    except OSError as error:
        raise NoRunError(f"{found} cannot be read: {error.strerror}; allow it to this user, or name another") from error
    inside = runs_in(found)
    near = [str(run) for run in inside or runs_in(found.parent)]
    hint = nearest("" if inside else str(found), near) if near else "name the save_path of a run"
    raise NoRunError(f"{found} is no run folder: it has no config.yaml; {hint}")


def _refuse_links_out(run: Path) -> None:
    """Raises RunFolderError for a folder of the run, or one in it, that is a link to somewhere else."""
    for folder in (run / name for name in FOLDERS):
        for path in (folder, *_links_in(folder)):
            if (target := regular_file.link_out(path)) is not None and path.is_dir():
                raise RunFolderError(
                    f"{path} is a link out of the run folder, to {target}: put that folder itself there, or look at "
                    "the run folder that it belongs to"
                )


def _links_in(folder: Path) -> list[Path]:
    try:
        with os.scandir(folder) as entries:
            found = list(islice(entries, _MOST_FILES + 1))
    except (FileNotFoundError, NotADirectoryError):
        return []
    if len(found) > _MOST_FILES:
        raise RunFolderError(f"{folder} holds more than {_MOST_FILES:,} files, which no run does: move some away")
    return [folder / entry.name for entry in found if entry.is_symlink()]


def runs_in(folder: Path) -> list[Path]:
    """Returns the run folders in a folder."""
    return [path.parent for path in sorted(folder.glob("*/config.yaml")) if path.is_file()]


class RunFolder:
    """Holds the folder during a run; makes it for its user alone.

    Raises RunFolderError if it is not writable or another host uses it, and in place of any error that ends the run
    once the folder was moved or deleted.
    """

    def __init__(self, root: Path, configuration: str, keep: bool = False) -> None:
        """``keep`` leaves a ``config.yaml`` that is there as it is: a measurement does not change its run."""
        self.root = root
        self.host = f"{platform.node()}:{os.getpid()}-{uuid.uuid4().hex[:8]}"
        """Tells this process from others that use a folder of the same run, as clones of a machine do."""
        try:
            root.mkdir(mode=0o700, parents=True, exist_ok=True)
            self._lock = self._take_lock()
            for name in ("", *FOLDERS):
                atomic_files.sweep(root / name)
            found = identity(root)
            self._lock.truncate(0)
            self._lock.write(b"%d\n" % os.getpid())
            self.run_id = found.run_id
            self.copy_of = found.copy_of
            """Machine and path of the run folder that this one was found to be a copy of, if so."""
            if not (keep and (root / "config.yaml").exists()):
                atomic_files.write_text(root / "config.yaml", configuration)
        except OSError as error:
            where = error.filename2 or error.filename or root
            raise RunFolderError(f"save_path={root} cannot be used: {where}: {error.strerror or error}") from error

    @property
    def checkpoints(self) -> Path:
        return self.root / "checkpoints"

    @property
    def trajectories(self) -> Path:
        return self.root / "trajectories"

    @property
    def metrics(self) -> Path:
        return self.root / "metrics.jsonl"

    @property
    def evaluations(self) -> Path:
        return self.root / "evaluation.jsonl"

    @property
    def events(self) -> Path:
        return self.root / "events.jsonl"

    @property
    def leases(self) -> Path:
        """Leases of tickets whose episodes have not landed."""
        return self.root / "leases.jsonl"

    @property
    def verdicts(self) -> Path:
        """Verdicts of the model that judges, if there is one."""
        return self.root / "judge.jsonl"

    @property
    def media(self) -> Path:
        """Animations of episodes, if the settings ask for any."""
        return self.root / "media"

    @property
    def dry_run(self) -> Path:
        """Files of a dry run's localhost workers; removed at its end."""
        return self.root / "dry_run"

    def evaluation(self, iteration: int) -> Path:
        """Returns the folder of the episodes that measured a checkpoint."""
        return self.root / "evaluation" / f"{iteration:06d}"

    def refuse_if_gone(self) -> None:
        """Raises RunFolderError once the folder was moved or deleted; another run may have its name by now."""
        with suppress(FileNotFoundError, NotADirectoryError):
            if os.path.samestat(os.fstat(self._lock.fileno()), (self.root / _LOCK).stat()):
                return
        raise RunFolderError(
            f"save_path={self.root} was moved or deleted while the run used it, so the run ended; "
            "put it back, and the same command continues"
        )

    def open_events(self, listeners: tuple[Listener, ...] = ()) -> Events:
        """Opens the run's events; tells if the folder was found to be a copy."""
        events = Events(self.events, listeners)
        if self.copy_of:
            events.emit("run_copied", copy_of=self.copy_of, run_id=self.run_id)
        return events

    def close(self) -> None:
        """Releases the folder to other hosts."""
        self._lock.close()

    def __enter__(self) -> RunFolder:
        return self

    def __exit__(self, kind: object, error: BaseException | None, trace: object) -> None:
        try:
            if isinstance(error, Exception):
                self.refuse_if_gone()
        finally:
            self.close()

    def _take_lock(self) -> FileIO:
        lock = atomic_files.opened_to_append(self.root / _LOCK)
        try:
            is_ours = file_system.lock(lock)
            if not is_ours:  # a reader that asks for it holds it for an instant
                time.sleep(_READER_S)
                is_ours = file_system.lock(lock)
        except OSError as error:
            lock.close()
            reason = f"save_path={self.root} cannot be used: {error.strerror}"
            raise RunFolderError(f"{reason}; set save_path to a folder on a local disk") from error
        if not is_ours:
            lock.seek(0)
            owner = lock.read().decode(errors="replace").strip()
            lock.close()
            raise RunFolderError(
                f"save_path={self.root} is in use by process {owner}; wait for it, or choose another save_path"
            )
        return lock
