"""The identity of a run: its permanent id, and the place of its folder, by which a copy of the folder is noticed.

Workers, Slurm and loggers tell runs by their id. A copy therefore gets an id of its own, also while the original runs;
a folder that was renamed, moved, mounted elsewhere or restored from a backup stays the same run.
"""

from __future__ import annotations

import os
import platform
import uuid
from contextlib import suppress
from dataclasses import asdict, dataclass
from pathlib import Path

import msgspec

from digirl_dist.errors import RunFolderError
from digirl_dist.settings import regular_file
from digirl_dist.storage import atomic_files

_FILE = "run.json"


@dataclass(frozen=True)
class RunIdentity:
    """The id of a run, and where the folder lies of which this one turned out to be a copy; empty: it is none."""

    run_id: str
    copy_of: str = ""


@dataclass(frozen=True)
class _Place:
    """Where a run folder lies. A renamed folder keeps its inode, a copy never does."""

    machine: str
    path: str
    device: int
    inode: int

    @classmethod
    def of(cls, folder: Path) -> _Place:
        found = folder.stat()
        return cls(platform.node(), str(folder.resolve()), found.st_dev, found.st_ino)

    def __str__(self) -> str:
        return f"{self.machine}:{self.path}"


@dataclass(frozen=True)
class _Record:
    """The content of ``run.json``."""

    run_id: str
    place: _Place | None = None
    """Where the run was used last; earlier versions did not note it."""


def identity(folder: Path) -> RunIdentity:
    """Returns the identity of the run in a folder, which is this process's alone for now.

    Gives an id to a new run and to a copy. Raises RunFolderError if ``run.json`` is damaged, and OSError.
    """
    here = _Place.of(folder)
    if not (folder / _FILE).exists():
        return _given(folder, here)
    noted = _read(folder)
    if noted.place is not None and _is_copy(folder, here, noted.run_id, noted.place):
        return _given(folder, here, str(noted.place))
    if noted.place != here:
        _write(folder, _Record(noted.run_id, here))
    return RunIdentity(noted.run_id)


def _given(folder: Path, here: _Place, copy_of: str = "") -> RunIdentity:
    """Gives the folder a new id."""
    found = RunIdentity(uuid.uuid4().hex[:12], copy_of)
    _write(folder, _Record(found.run_id, here))
    return found


def _is_copy(folder: Path, here: _Place, run_id: str, noted: _Place) -> bool:
    """Returns whether another folder has this id, or may have it; ``noted`` is where the run was used last.

    Where the original is gone, what has come from another file system of this machine was moved.
    """
    if (noted.machine, noted.path) == (here.machine, here.path):
        return False
    if _is_another_with(run_id, Path(noted.path), folder):
        return True
    return noted.inode != here.inode and (noted.machine != here.machine or noted.device == here.device)


def _is_another_with(run_id: str, folder: Path, than: Path) -> bool:
    with suppress(OSError, ValueError, RunFolderError):
        return _read(folder).run_id == run_id and not os.path.samefile(folder, than)
    return False


def _read(folder: Path) -> _Record:
    """Raises RunFolderError if ``run.json`` is damaged, and OSError."""
    path = folder / _FILE
    try:
        return msgspec.json.decode(regular_file.content(path), type=_Record)
    except (msgspec.MsgspecError, ValueError, RecursionError) as error:  # ValueError: it is no Unicode
        raise RunFolderError(f"{path} is damaged; restore it or choose another save_path") from error


def _write(folder: Path, record: _Record) -> None:
    atomic_files.write_json(folder / _FILE, asdict(record))
