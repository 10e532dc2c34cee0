"""The folder of a run (``save_path``): its files, its identity, and a lock that admits one host at a time."""

from __future__ import annotations

import os
import platform
import re
import time
import uuid
from collections.abc import Iterator
from contextlib import ExitStack, suppress
from dataclasses import asdict, dataclass
from io import FileIO
from itertools import chain, count
from pathlib import Path

import msgspec

from digirl_dist.errors import FolderInUseError, NoRunError, RunFolderError, SettingsError
from digirl_dist.plain_text import nearest
from digirl_dist.settings import regular_file
from digirl_dist.settings.paths import expanded
from digirl_dist.settings.safe_yaml import read_yaml
from digirl_dist.storage import atomic_files, file_system
from digirl_dist.storage.events import Events, Listener
from digirl_dist.types import Json

_FILE = "run.json"
RUNS = Path("runs")
"""Where runs lie whose folder nobody named."""


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
    place: _Place
    """Where the run was used last."""


def _identity(folder: Path) -> tuple[str, str]:
    """Returns the id of the run in a folder, which is this process's alone for now, and of what it is a copy, if so.

    Gives an id to a new run and to a copy. Raises RunFolderError if ``run.json`` is damaged, and OSError.
    """
    here = _Place.of(folder)
    if not (folder / _FILE).exists():
        return _given(folder, here)
    noted = _read(folder)
    if _is_copy(folder, here, noted.run_id, noted.place):
        return _given(folder, here, str(noted.place))
    if noted.place != here:
        _write(folder, _Record(noted.run_id, here))
    return noted.run_id, ""


def _given(folder: Path, here: _Place, copy_of: str = "") -> tuple[str, str]:
    """Gives the folder a new id."""
    run_id = uuid.uuid4().hex[:12]
    _write(folder, _Record(run_id, here))
    return run_id, copy_of


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
        raise RunFolderError(f"{path} is damaged; restore it, or remove it to go on with a new id") from error


def _write(folder: Path, record: _Record) -> None:
    atomic_files.write_json(folder / _FILE, asdict(record))


_LOCK = ".lock"
_READER_S = 0.1
_MOST_FILES = 200_000
FOLDERS = (
    *("checkpoints", "checkpoints/updates", "evaluation", "media", "trajectories", "trajectories/.closed"),
    *("trajectories/.landing", "trajectories/.landing/evaluate", "trajectories/.landing/measure"),
    *("trajectories/.refused", "verdicts", "adapters", "dry_run", "mlruns", "slurm", "tensorboard", "wandb"),
)
"""The folders of a run, those of loggers included."""


def existing_run(folder: str | Path) -> Path:
    """Returns the folder of a run, which runs always name in this way. Raises NoRunError naming runs that are near."""
    found = expanded(folder)
    try:
        if (found / "config.yaml").is_file():
            _refuse_links_out(found)
            return found
    except OSError as error:
        raise NoRunError(f"{found} cannot be read: {error.strerror}; allow it to this user, or name another") from error
    if (above := next((each for each in found.parents if (each / "config.yaml").is_file()), None)) is not None:
        raise NoRunError(f"{found} is no run folder: it lies in the run {above}; name that")
    inside = runs_in(found)
    near = [str(run) for run in inside or runs_in(found.parent) or runs_in(Path("runs"))]
    same = [run for run in near if Path(run).name == found.name]
    hint = nearest("" if inside else same[0] if same else str(found), near) if near else "name the save_path of a run"
    raise NoRunError(f"{found} is no run folder: it has no config.yaml; {hint}")


def run_id_of(folder: Path) -> str:
    """Returns the id of the run in a folder, which may be a stranger's; empty where ``run.json`` does not say it."""
    try:
        return str(msgspec.json.decode(regular_file.content(folder / _FILE))["run_id"])
    except (OSError, ValueError, KeyError, TypeError, RecursionError):
        return ""


def config_of(folder: Path) -> dict[str, Json]:
    """Returns the composed configuration of a run, secrets hidden; {} before it is written. Raises RunFolderError."""
    path = folder / "config.yaml"
    try:
        content = read_yaml(path, path.name) if path.exists() else {}
    except SettingsError as error:
        raise RunFolderError(str(error)) from error
    return {key: content[key] for key in content if key != "defaults"} if isinstance(content, dict) else {}


def _refuse_links_out(run: Path) -> None:
    """Raises RunFolderError for a folder of the run, or one anywhere in it, that is a link to somewhere else."""
    for folder in (run / name for name in FOLDERS if "/" not in name):  # the others lie in these
        for path in (folder, *_links_in(folder)):
            if (target := regular_file.link_out(path)) is not None and path.is_dir():
                raise RunFolderError(
                    f"{path} is a link out of the run folder, to {target}: put that folder itself there, or look at "
                    "the run folder that it belongs to"
                )


def _links_in(folder: Path) -> Iterator[Path]:
    waiting, left = [folder], _MOST_FILES
    while waiting:
        with suppress(FileNotFoundError, NotADirectoryError), os.scandir(waiting.pop()) as entries:
            for entry in entries:
                left -= 1
                if left < 0:
                    raise RunFolderError(
                        f"{folder} holds more than {_MOST_FILES:,} files, which no run does: move some away"
                    )
                if entry.is_symlink():
                    yield Path(entry)
                elif entry.is_dir():
                    waiting.append(Path(entry))


def runs_in(folder: Path) -> list[Path]:
    """Returns the run folders in a folder."""
    return [path.parent for path in sorted(folder.glob("*/config.yaml")) if path.is_file()]


def newest_run(name: str | None = None) -> Path | None:
    """Returns the run below ``runs`` that was started last, of all or of those with this name and a number."""
    ours = re.compile(r".*" if name is None else rf"{re.escape(name)}(-\d+)?")
    found = [run for run in runs_in(RUNS) if ours.fullmatch(run.name)]
    return max(found, key=lambda run: (run / "config.yaml").stat().st_mtime_ns, default=None)


def new_run(name: str) -> Path:
    """Returns a folder below ``runs`` that is not there yet, with this name, and a number from the second on."""
    names = chain([name], (f"{name}-{number}" for number in count(2)))
    return next(RUNS / each for each in names if not os.path.lexists(RUNS / each))


class RunFolder:
    """Holds the folder during a run; makes it for its user alone.

    Raises RunFolderError if it is not writable or another host uses it, and in place of any error that ends the run
    once the folder was moved or deleted.
    """

    def __init__(self, root: Path, configuration: str, keep: bool = False) -> None:
        """``keep`` leaves a ``config.yaml`` that is there as it is: a measurement does not change its run."""
        self.root = root
        self.checkpoints, self.trajectories = root / "checkpoints", root / "trajectories"
        self.metrics, self.evaluations = root / "metrics.jsonl", root / "evaluation.jsonl"
        self.events = root / "events.jsonl"
        self.rollouts = root / "rollouts.jsonl"
        """Which ticket each key of a caller has."""
        self.leases = root / "leases.jsonl"
        """Leases of tickets whose episodes have not landed."""
        self.verdicts = root / "judge.jsonl"
        """Verdicts of the model that judges, if there is one."""
        self.media = root / "media"
        """Animations of episodes, if the settings ask for any."""
        self.dry_run = root / "dry_run"
        """Files of a dry run's localhost workers; removed at its end."""
        self.host = f"{platform.node()}:{os.getpid()}-{uuid.uuid4().hex[:8]}"
        """Tells this process from others that use a folder of the same run, as clones of a machine do."""
        try:
            root.mkdir(mode=0o700, parents=True, exist_ok=True)
            with ExitStack() as undone:
                self._lock = undone.enter_context(self._take_lock())  # which an error's traceback would keep
                for name in ("", *FOLDERS):
                    atomic_files.sweep(root / name)
                self.run_id, self.copy_of = _identity(root)
                """The run's id, and machine and path of the run folder that this one was found to copy, if so."""
                self._lock.truncate(0)
                self._lock.write(b"%d\n" % os.getpid())
                if not (keep and (root / "config.yaml").exists()):
                    atomic_files.write_text(root / "config.yaml", configuration)
                undone.pop_all()
        except OSError as error:
            where = error.filename2 or error.filename or root
            raise RunFolderError(f"save_path={root} cannot be used: {where}: {error.strerror or error}") from error

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
            raise RunFolderError(
                f"save_path={self.root} cannot be used: {error.strerror}; set save_path to a folder on a local disk"
            ) from error
        if not is_ours:
            lock.seek(0)
            owner = lock.read().decode(errors="replace").strip()
            lock.close()
            raise FolderInUseError(
                f"save_path={self.root} is in use by process {owner}; wait for it, or choose another save_path"
            )
        return lock
