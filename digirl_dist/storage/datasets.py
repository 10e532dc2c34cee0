"""Reads existing trajectories: Parquet files, folders of them, folders saved by ``datasets``, files of DigiRL's."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq

from digirl_dist.emulator.episode_limits import check_step, check_vector
from digirl_dist.errors import SettingsError, TrajectoryError
from digirl_dist.settings import regular_file
from digirl_dist.storage import parquet
from digirl_dist.trajectory import Trajectory

_ORDER = ("purpose", "iteration", "ticket", "policy_version", "step")
"""Of rows: episodes of other purposes, or that measure other policies, have the same iteration and ticket."""
_SPARE = 256 << 20
_MOST_PER_BYTE = 64
"""A few bytes can stand for many, as in a Parquet file's dictionary."""
_ROWS = 16
"""Read at once."""


def read_datasets(paths: Sequence[str]) -> list[Trajectory]:
    """Returns the episodes of all files and folders, in their order. Raises TrajectoryError naming an unusable one.

    A folder holds ``*.parquet`` (a run's ``trajectories``, for example) or, at any depth, the ``*.arrow`` files of
    ``Dataset.save_to_disk``. Rows may be in any order; unknown columns are ignored. A file ``*.pt`` is one of DigiRL's.
    """
    return [episode for path in paths for episode in _read(Path(path).expanduser())]


def refuse_unreadable(paths: Sequence[str]) -> None:
    """Raises SettingsError for what ``read_datasets`` would refuse at first sight: by its files and their columns."""
    for path in (Path(each).expanduser() for each in paths if not each.endswith(".pt")):
        try:
            with _opened(_files(path)[0]) as (schema, _):
                _ours(schema.empty_table())
        except TrajectoryError as error:
            raise SettingsError(
                f"offline.data={path} holds no trajectories ({error}): name a run's folder trajectories, an exported "
                "folder data, or a .pt file of DigiRL's"
            ) from error


def _read(path: Path) -> list[Trajectory]:
    if path.suffix == ".pt":
        from digirl_dist.storage import import_digirl

        return import_digirl.read(path)
    batches = (batch for file in _files(path) for batch in _batches(file))
    try:
        found = parquet.from_batches(parquet.SCHEMA, batches, _ORDER)
        for episode in found:
            _refuse_numbers(episode)
        return found
    except TrajectoryError as error:
        raise TrajectoryError(f"{path} holds no trajectories of this project: {error}") from error


def _files(path: Path) -> list[Path]:
    if path.is_file():
        return [path]
    if not (found := sorted(path.glob("*.parquet")) or sorted(path.rglob("*.arrow"))):
        below = next((found.parent for found in sorted(path.glob("*/*.parquet"))), None)
        hint = f"; name {below}, or another folder below it that has some" if below else ""
        raise TrajectoryError(f"{path} is no Parquet file and no folder with .parquet or .arrow files{hint}")
    return found


def _batches(file: Path) -> Iterator[pa.RecordBatch]:
    """Reads a file little by little. Raises TrajectoryError before that takes far more memory than its size is."""
    size = 0
    with _opened(file) as (_, batches):
        most = _SPARE + _MOST_PER_BYTE * file.stat().st_size
        for batch in batches:
            size += batch.nbytes
            if size > most:
                raise TrajectoryError(f"{file} would unpack to more than {most} bytes")
            yield from _ours(pa.Table.from_batches([batch])).to_batches()


@contextmanager
def _opened(file: Path) -> Iterator[tuple[pa.Schema, Iterable[pa.RecordBatch]]]:
    """Raises TrajectoryError, also for what reading raises."""
    try:
        if file.suffix == ".arrow":
            with pa.memory_map(str(file)) as source, pa.ipc.open_stream(source) as stream:
                yield stream.schema, stream
        else:
            with regular_file.opened(file) as source, pq.ParquetFile(source) as opened:
                yield opened.schema_arrow, opened.iter_batches(_ROWS, use_threads=False)
    except (pa.ArrowException, OSError, KeyError) as error:
        raise TrajectoryError(f"{file}: {error}") from error


def _refuse_numbers(episode: Trajectory) -> None:
    """Raises TrajectoryError for a number that would end the update that learns from it."""
    try:
        for step in episode.steps:
            check_step(step)
            check_vector(step.observation.vector)
        check_vector(episode.final_observation.vector)
    except TrajectoryError as error:
        raise TrajectoryError(f"episode {episode.episode_id}: {error}") from error.__cause__


def _ours(rows: pa.Table) -> pa.Table:
    """Returns the columns of the schema in its types; ``datasets`` widens some of them."""
    return rows.select(parquet.SCHEMA.names).replace_schema_metadata(None).cast(parquet.SCHEMA)
