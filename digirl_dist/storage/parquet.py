"""Trajectories as Arrow tables and Parquet files: one row per step."""

from __future__ import annotations

import json
import math
from array import array
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from itertools import chain, pairwise
from operator import itemgetter
from pathlib import Path
from typing import Any, cast

import msgspec
import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
from msgspec.inspect import BoolType, FloatType, IntType, StrType, StructType, type_info

from digirl_dist.errors import TrajectoryError
from digirl_dist.settings import regular_file
from digirl_dist.storage import atomic_files, parquet_bounds
from digirl_dist.storage.episode_file import Origin, goals
from digirl_dist.trajectory import Observation, Step, Trajectory

_PICTURE = pa.struct([("bytes", pa.binary()), ("path", pa.string())])
"""How ``datasets`` stores a picture, so that a hub shows it; without ``path`` the bytes count."""
_VECTOR = pa.list_(pa.float32())
_TOKENS = pa.list_(pa.int32())
_SEEN = (("text", pa.string()), ("image", _PICTURE), ("vector", _VECTOR))
"""The parts of an observation."""
_FIRST: list[tuple[str, pa.DataType]] = [
    ("iteration", pa.int32()),
    ("ticket", pa.int32()),
    ("episode_id", pa.string()),
    ("worker", pa.string()),
    ("slot", pa.int32()),
    ("purpose", pa.string()),
    ("policy_version", pa.int64()),
    ("task", pa.string()),
    ("instruction", pa.string()),
    ("seed", pa.int64()),
    ("step", pa.int32()),
    *_SEEN,
    ("action", pa.string()),
    ("log_prob", pa.float32()),
    ("token_log_probs", _VECTOR),
    ("reward", pa.float32()),
    ("terminated", pa.bool_()),
    ("truncated", pa.bool_()),
    ("achieved", pa.string()),
    ("success", pa.bool_()),
    *((f"final_{name}", kind) for name, kind in _SEEN),
    ("params", pa.string()),
    ("tokens", _TOKENS),
    ("prompt_tokens", _TOKENS),
    ("step_policy_version", pa.int64()),
]
_TYPES = {IntType: pa.int64(), FloatType: pa.float64(), StrType: pa.string(), BoolType: pa.bool_()}
_COLUMNS = [
    *_FIRST,
    *(
        (field.name, _TYPES[type(field.type)])
        for field in cast(StructType, type_info(Origin)).fields
        if field.name not in dict(_FIRST)
    ),
]
"""What else an episode's origin has gets a column behind the first ones, of its type."""


def _feature(kind: pa.DataType) -> dict[str, Any]:
    if kind == _PICTURE:
        return {"_type": "Image"}
    if pa.types.is_list(kind):
        return {"feature": _feature(kind.value_type), "length": -1, "_type": "Sequence"}
    return {"dtype": {"float": "float32"}.get(str(kind), str(kind)), "_type": "Value"}


_FEATURES = {"info": {"features": {name: _feature(kind) for name, kind in _COLUMNS}}}
"""Of the columns, as ``datasets`` has them: it shows pictures by these."""
SCHEMA = pa.schema(_COLUMNS)
"""``success``, and the task's ``params`` as JSON, belong to the episode and repeat in each row; ``final_…`` are null
except in the last row."""

_MAY_BE_NULL = ("image", "vector", "final_text", "final_image", "final_vector", "log_prob", "step_policy_version")
"""An unknown log-probability is NaN, which some libraries store as null."""
_OF_THE_EPISODE = frozenset(Origin.__struct_fields__) - {"instruction"}
_OF_OBSERVATIONS = frozenset(f"{prefix}{name}" for prefix in ("", "final_") for name, _ in _SEEN)
_UNREADABLE = (msgspec.MsgspecError, ValueError, TypeError, KeyError, RecursionError)
_LONGEST_REASON = 500
_STREAMED_ROWS = 64
_GROUP_BYTES = 32 << 20
_SMALL_COLUMN = 1 << 12


AS_WRITTEN: dict[str, Any] = {
    "compression": "zstd",
    "use_dictionary": False,
    "write_page_checksum": True,
    "write_statistics": False,
    "store_schema": False,
    "write_batch_size": 16,
}
"""Few bytes never stand for many values (see ``parquet_bounds``), damage to any page is noticed, and a page ends after
few screenshots: its size is looked at once per batch."""


def to_table(trajectory: Trajectory) -> pa.Table:
    """Returns one row per step, in order."""
    last = len(trajectory.steps) - 1
    episode = msgspec.structs.asdict(Origin.of(trajectory))
    rows = [
        {
            **episode,
            "step": number,
            **_shown("", step.observation),
            "action": json.dumps(step.action),
            "log_prob": step.log_prob,
            "token_log_probs": list(step.token_log_probs),
            "tokens": list(step.tokens),
            "prompt_tokens": list(step.prompt_tokens),
            "step_policy_version": step.policy_version,
            "reward": step.reward,
            "terminated": step.terminated,
            "truncated": step.truncated,
            "achieved": json.dumps([dict(goal) for goal in step.achieved]),
            **(_shown("final_", trajectory.final_observation) if number == last else {}),
        }
        for number, step in enumerate(trajectory.steps)
    ]
    return pa.Table.from_pylist(rows, schema=SCHEMA)


def from_table(table: pa.Table) -> list[Trajectory]:
    """Returns the episodes of a table, in the order of their first rows.

    Raises TrajectoryError if the schema or a row does not fit.
    """
    return from_batches(table.schema, table.to_batches())


def from_batches(schema: pa.Schema, batches: Iterable[pa.RecordBatch], order: Sequence[str] = ()) -> list[Trajectory]:
    """Returns the episodes of batches, in the order of their first rows; these are sorted by the columns of ``order``.

    Raises TrajectoryError if the schema or a row does not fit.
    """
    if not schema.equals(SCHEMA, check_metadata=False):
        raise TrajectoryError(f"columns are not those of a trajectory: {', '.join(schema.names)}")
    episodes: dict[str, list[dict[str, Any]]] = {}
    once: dict[object, Any] = {}
    try:
        rows = (row for batch in batches for row in _rows(batch, once))
        for row in sorted(rows, key=itemgetter(*order)) if order else rows:
            episodes.setdefault(row["episode_id"], []).append(row)
        return [_trajectory(each) for each in episodes.values()]
    except _UNREADABLE as error:
        raise TrajectoryError(f"a row is not one of a trajectory: {error}") from error


def write(path: Path, trajectories: Iterable[Trajectory], flushed: bool = True) -> None:
    """Writes a file beside ``path`` and renames it (see ``atomic_files``), so ``path`` is never half-written."""
    with atomic_files.appearing(path, flushed) as part:
        write_to(part, trajectories)


def write_to(sink: Path | pa.BufferOutputStream, trajectories: Iterable[Trajectory]) -> None:
    groups = _groups(to_table(trajectory) for trajectory in trajectories)
    first = next(groups, SCHEMA.empty_table())
    with pq.ParquetWriter(sink, SCHEMA, **{**AS_WRITTEN, "compression": _codecs(first)}) as writer:
        writer.add_key_value_metadata({"huggingface": json.dumps(_FEATURES)})
        for group in chain([first] if first.num_rows else [], groups):  # without rows there is no group
            writer.write_table(group)


def _codecs(rows: pa.Table) -> dict[str, str]:
    """Returns the codec of each column by its path. For a few bytes, zstd's own memory costs more than they do."""
    flat = rows.flatten()
    paths = [field.name + ".list.element" * pa.types.is_list(field.type) for field in flat.schema]
    sizes = [column.nbytes for column in flat.columns]
    return {path: "zstd" if size > _SMALL_COLUMN else "none" for path, size in zip(paths, sizes, strict=True)}


def _groups(episodes: Iterable[pa.Table]) -> Iterator[pa.Table]:
    """Yields tables of whole episodes, each a row group: to show one, no more than its group is read."""
    group: list[pa.Table] = []
    size = 0
    for rows in episodes:
        group.append(rows)
        size += rows.nbytes
        if size > _GROUP_BYTES:
            yield pa.concat_tables(group)
            group, size = [], 0
    if group:
        yield pa.concat_tables(group)


def read(path: Path | pa.BufferReader) -> list[Trajectory]:
    """Returns the episodes of a file. Raises TrajectoryError naming the file if it is truncated, altered or foreign."""
    with _refusals(path):
        source = regular_file.checked(path) if isinstance(path, Path) else path
        with pq.ParquetFile(source, page_checksum_verification=True) as file:  # read_table imports much more
            return from_batches(file.schema_arrow, file.iter_batches(_STREAMED_ROWS, use_threads=False))


def stream(path: Path) -> Iterator[Trajectory]:
    """Yields the episodes of a file of a run folder, which may be a stranger's, in memory for few of them.

    Raises TrajectoryError as ``read`` does, and for a file that this package would not have written.
    """
    with opened(path) as file:
        rows: list[dict[str, Any]] = []
        for batch in file.batches(_STREAMED_ROWS):
            for row in _rows(batch, {}):
                if rows and row["episode_id"] != rows[0]["episode_id"]:
                    yield _trajectory(rows)
                    rows = []
                rows.append(row)
        if rows:
            yield _trajectory(rows)


@contextmanager
def opened(
    path: Path,
    limits: parquet_bounds.Limits = parquet_bounds.OF_A_RUN,
    schema: pa.Schema = SCHEMA,
    what: str = "a trajectory file",
) -> Iterator[parquet_bounds.BoundedFile]:
    """Opens a file of a run folder, which may be a stranger's. Raises TrajectoryError, for what reading raises too."""
    with _refusals(path, what), parquet_bounds.bounded(path, schema, limits) as file:
        yield file


@contextmanager
def _refusals(path: Path | pa.BufferReader, what: str = "a trajectory file") -> Iterator[None]:
    try:
        yield
    except (*_UNREADABLE, OSError, pa.ArrowException, TrajectoryError) as error:
        raise TrajectoryError(f"{path} is not {what}: {str(error)[:_LONGEST_REASON]}") from error


def _rows(batch: pa.RecordBatch, once: dict[object, Any]) -> Iterator[dict[str, Any]]:
    """Returns the rows of a batch, observations as Observation. Raises TrajectoryError for a null.

    ``once`` has the texts and images of the batches before: each is in memory once however often it was seen.
    """
    for name in batch.schema.names:
        if name not in _MAY_BE_NULL and batch.column(name).null_count:
            raise TrajectoryError(f"the column {name} has nulls")
    plain = [name for name in batch.schema.names if name not in _OF_OBSERVATIONS]
    columns = [_column(batch.column(name)) for name in plain]
    seen = [_observations(batch, prefix, once) for prefix in ("", "final_")]
    names = (*plain, "observation", "final_observation")
    return (dict(zip(names, row, strict=True)) for row in zip(*columns, *seen, strict=True))


def _observations(batch: pa.RecordBatch, prefix: str, once: dict[object, Any]) -> Iterator[Observation | None]:
    """Returns the observations of some rows."""
    texts, images, vectors = (batch.column(f"{prefix}{name}") for name, _ in _SEEN)
    rows = zip(texts, images, vectors.is_valid().to_pylist(), _column(vectors), strict=True)
    for said, shown, has_vector, numbers in rows:  # one by one: a batch may have 64 screens
        text, image = said.as_py(), shown["bytes"].as_py() if shown.is_valid else None
        vector = numbers.copy() if has_vector else None
        yield None if text is None else Observation(once.setdefault(text, text), once.setdefault(image, image), vector)


def _column(cells: pa.Array) -> Sequence[Any]:
    """Returns the cells of a column; lists of numbers as views of one array, since Python's take eight times as much
    memory."""
    if not pa.types.is_list(cells.type):
        return cells.to_pylist()  # type: ignore[no-any-return]
    numbers = cells.values.to_numpy(zero_copy_only=False)
    return [numbers[first:last] for first, last in pairwise(cells.offsets.to_numpy())]


def _shown(prefix: str, observation: Observation) -> dict[str, Any]:
    vector = None if observation.vector is None else np.asarray(observation.vector, np.float32)
    image = None if observation.image is None else {"bytes": observation.image, "path": None}
    return {f"{prefix}text": observation.text, f"{prefix}image": image, f"{prefix}vector": vector}


def _trajectory(rows: Sequence[dict[str, Any]]) -> Trajectory:
    first, last = rows[0], rows[-1]
    if [row["step"] for row in rows] != list(range(len(rows))) or last["final_observation"] is None:
        raise TrajectoryError(f"episode {first['episode_id']} is not complete")
    for name in first.keys() & _OF_THE_EPISODE:
        if any(row[name] != first[name] for row in rows):
            raise TrajectoryError(f"episode {first['episode_id']} has rows with different values of {name}")
    if any(row["final_observation"] is not None for row in rows[:-1]):
        raise TrajectoryError(f"episode {first['episode_id']} has a final observation before its last row")
    origin = msgspec.convert([first[name] for name in Origin.__struct_fields__], Origin)
    return origin.trajectory([_step(row) for row in rows], last["final_observation"])


def _step(row: dict[str, Any]) -> Step:
    return Step(
        observation=row["observation"],
        action=json.loads(row["action"]),
        log_prob=math.nan if row["log_prob"] is None else row["log_prob"],
        reward=row["reward"],
        terminated=row["terminated"],
        truncated=row["truncated"],
        achieved=goals(row["achieved"]),
        token_log_probs=array("f", row["token_log_probs"]),
        tokens=array("i", row["tokens"]),
        prompt_tokens=array("i", row["prompt_tokens"]),
        policy_version=row["step_policy_version"],
    )
