"""The table of an update as a Parquet file: a row for each step that the update considered."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq

from digirl_dist.errors import TrajectoryError
from digirl_dist.storage import atomic_files, parquet, parquet_bounds
from digirl_dist.types import Json

Cells = tuple[int, int, str, int, str, str, float, float | None, float | None, bool]
"""A row, in the order of the columns."""

SCHEMA = pa.schema(
    [
        ("iteration", pa.int32()),
        ("ticket", pa.int32()),
        ("task", pa.string()),
        ("step", pa.int32()),
        ("outcome", pa.string()),
        ("reason", pa.string()),
        ("weight", pa.float32()),
        ("advantage", pa.float32()),
        ("value", pa.float32()),
        ("learned", pa.bool_()),
    ]
)
"""``task`` differs from the episode's own where it was relabelled (hindsight). ``outcome`` names the figure of
``metrics.jsonl`` that counts the step. ``advantage`` and ``value`` are null where the algorithm has none."""

_LIMITS = parquet_bounds.Limits(rows=1 << 24, beyond=1 << 26)
_GROUP_ROWS = 1 << 16
_ROWS_AT_ONCE = 1 << 14
_MOST_ROWS = 1 << 16
"""Of one episode."""
_MAY_BE_NULL = ("advantage", "value")


def to_table(rows: Iterable[Cells]) -> pa.Table:
    """Raises ArrowException or TypeError for cells of other types."""
    columns = list(zip(*rows, strict=True)) or [()] * len(SCHEMA)
    return pa.table([pa.array(cells, kind) for cells, kind in zip(columns, SCHEMA.types, strict=True)], schema=SCHEMA)


def write(path: Path, table: pa.Table) -> None:
    """Writes a file beside ``path`` and renames it (see ``atomic_files``), so ``path`` is never half-written."""
    with atomic_files.appearing(path) as part:
        pq.write_table(table, part, row_group_size=_GROUP_ROWS, **parquet.AS_WRITTEN)


def to_bytes(table: pa.Table) -> bytes:
    """Returns the content of a Parquet file, for the way between ranks."""
    sink = pa.BufferOutputStream()
    pq.write_table(table, sink, **parquet.AS_WRITTEN)
    return bytes(sink.getvalue())


def merged(parts: Sequence[bytes]) -> pa.Table | None:
    """Returns the rows of all ``to_bytes``, of which some may be empty; None if all are."""
    tables = [pq.read_table(pa.BufferReader(part)) for part in parts if part]
    return pa.concat_tables(tables) if tables else None


def of_episode(path: Path, iteration: int, ticket: int) -> list[Mapping[str, Json]]:
    """Returns the rows of an episode, from a file that may be a stranger's. Raises TrajectoryError."""
    found: list[Mapping[str, Json]] = []
    with parquet.opened(path, _LIMITS, SCHEMA, "the table of an update") as file:
        for batch in file.batches(_ROWS_AT_ONCE):
            if any(batch.column(name).null_count for name in SCHEMA.names if name not in _MAY_BE_NULL):
                raise TrajectoryError("a cell is null")
            own = (batch.column("iteration").to_numpy() == iteration) & (batch.column("ticket").to_numpy() == ticket)
            found += batch.filter(pa.array(own)).to_pylist()
            if len(found) > _MOST_ROWS:
                raise TrajectoryError(f"an episode has more than {_MOST_ROWS:,} rows")
    return found
