"""The table of an update: what algorithms return, and what is read of a file that may be a stranger's."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from single_steps import row_of

from digirl_dist.algorithm.contract import learned_of
from digirl_dist.algorithm.table import Learned
from digirl_dist.errors import TrainingError, TrajectoryError
from digirl_dist.storage import parquet, update_table
from digirl_dist.trajectory import Observation

NO_ALGORITHM: Any = object()
CELLS = (3, 1, "t", 0, "kept_steps", "it was good", 0.5, None, 0.25, True)


def table_of(*rows: Any) -> pa.Table:
    return update_table.to_table([(*CELLS[:1], ticket, *CELLS[2:]) for ticket in rows])


def test_figures_alone_are_no_table_and_rows_are_one() -> None:
    assert learned_of(NO_ALGORITHM, {"loss": 1}) == ({"loss": 1.0}, None)
    row = row_of(Observation("seen"), 1, weight=0.5)
    figures, table = learned_of(NO_ALGORITHM, Learned({"loss": 1}, [row]))
    assert figures == {"loss": 1.0} and table.to_pylist()[0] | {"learned": False} == {
        "iteration": 0,
        "ticket": 0,
        "task": "t",
        "step": 0,
        "outcome": "kept_steps",
        "reason": "",
        "weight": 0.5,
        "advantage": None,
        "value": None,
        "learned": False,
    }
    assert learned_of(NO_ALGORITHM, Learned({}, []))[1].num_rows == 0


@pytest.mark.parametrize("rows", [[3], [row_of(Observation(), 1, weight="heavy")], None])  # type: ignore[arg-type]
def test_a_table_that_is_none_is_refused_by_the_algorithms_name(rows: Any) -> None:
    with pytest.raises(TrainingError, match=r"object\.update returned a table that is none"):
        learned_of(NO_ALGORITHM, Learned({}, rows))


def test_the_rows_of_one_episode_are_read_back(tmp_path: Path) -> None:
    path = tmp_path / "table.parquet"
    update_table.write(path, table_of(0, 1, 1, 2))
    found = update_table.of_episode(path, 3, 1)
    assert [tuple(row.values()) for row in found] == [CELLS, CELLS] and update_table.of_episode(path, 4, 1) == []
    update_table.write(path, table_of())
    assert update_table.of_episode(path, 3, 1) == []


def test_tables_of_ranks_are_put_together() -> None:
    parts = [update_table.to_bytes(table_of(0, 2)), b"", update_table.to_bytes(table_of(1))]
    merged = update_table.merged(parts)
    assert merged is not None and merged["ticket"].to_pylist() == [0, 2, 1] and update_table.merged([b""]) is None


STRANGE = {
    "other columns": pa.table({"iteration": [3]}),
    "a null": table_of(1).set_column(5, update_table.SCHEMA.field("reason"), pa.array([None], pa.string())),
    "more rows than an episode has": table_of(*[1] * (update_table._MOST_ROWS + 1)),
}


@pytest.mark.parametrize("name", STRANGE)
def test_a_strangers_table_is_refused_with_its_name(tmp_path: Path, name: str) -> None:
    path = tmp_path / "table.parquet"
    pq.write_table(STRANGE[name], path, **parquet.AS_WRITTEN)
    with pytest.raises(TrajectoryError, match="table.parquet is not the table of an update: "):
        update_table.of_episode(path, 3, 1)


def test_a_table_that_unpacks_to_too_much_is_refused(tmp_path: Path) -> None:
    path, reason = tmp_path / "table.parquet", pa.array(["x" * (70 << 20)])
    pq.write_table(table_of(1).set_column(5, update_table.SCHEMA.field("reason"), reason), path, **parquet.AS_WRITTEN)
    with pytest.raises(TrajectoryError, match="unpack"):
        update_table.of_episode(path, 3, 1)
