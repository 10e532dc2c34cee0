"""A file of a stranger costs little memory, whatever its footer says."""

from __future__ import annotations

import os
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from digirl_dist.errors import TrajectoryError
from digirl_dist.storage import parquet
from digirl_dist.storage.parquet_bounds import Limits, ThriftReader, bounded
from digirl_dist.trajectory import Observation, Trajectory
from tests.storage.test_parquet import episode

ROWS = 1000


def read_bounded(path: Path, most_rows: int) -> list[Trajectory]:
    with parquet.opened(path, Limits(most_rows, groups=1, beyond=32 << 20)) as file:
        return parquet.from_table(file.read())


def write(path: Path, table: pa.Table, **how: Any) -> Path:
    pq.write_table(table, path, **{**parquet.AS_WRITTEN, **how})
    return path


def rows(count: int, **changed: Any) -> pa.Table:
    """``count`` times the same row, some of whose values are changed."""
    one = parquet.to_table(episode(steps=1)).to_pylist()[0] | changed
    arrays = [pa.repeat(pa.scalar(one[field.name], field.type), count) for field in parquet.SCHEMA]
    return pa.table(arrays, schema=parquet.SCHEMA)


def long_vector(length: int) -> pa.Table:
    """A list of nulls, which take no bytes of their own."""
    table = parquet.to_table(episode(steps=1))
    nulls = pa.array([[None] * length], pa.list_(pa.float32()))
    return table.set_column(table.schema.get_field_index("vector"), parquet.SCHEMA.field("vector"), nulls)


def in_two_groups(path: Path) -> Path:
    return write(path, rows(4), row_group_size=2)


BOMBS: dict[str, Callable[[Path], Path]] = {
    "zeros that zstd shrinks": lambda path: write(path, rows(40, action="0" * (2 << 20))),
    "a text that a dictionary repeats": lambda path: write(path, rows(ROWS, action="0" * 100_000), use_dictionary=True),
    "texts that share their beginning": lambda path: write(
        path, rows(ROWS, action="0" * 100_000), column_encoding={"action": "DELTA_BYTE_ARRAY"}
    ),
    "many rows": lambda path: write(path, rows(100 * ROWS)),
    "a list of nulls": lambda path: write(path, long_vector(5_000_000)),
    "several row groups": in_two_groups,
    "no checksums": lambda path: write(path, rows(1), write_page_checksum=False),
    "pages of another form": lambda path: write(path, rows(1), data_page_version="2.0"),
    "another compression": lambda path: write(path, rows(1), compression="gzip"),
    "a column more": lambda path: write(path, rows(1).append_column("more", pa.array([1]))),
    "a column less": lambda path: write(path, rows(1).drop_columns(["seed"])),
    "no file": lambda path: (os.mkfifo(path), path)[1],
}


@pytest.mark.parametrize("name", BOMBS)
def test_a_file_that_unpacks_to_much_more_is_refused_before_it_is_unpacked(tmp_path: Path, name: str) -> None:
    path = BOMBS[name](tmp_path / "e.parquet")
    allocated, before = pa.total_allocated_bytes(), pa.default_memory_pool().max_memory()
    with pytest.raises(TrajectoryError, match=r"e\.parquet is not a trajectory file"):
        read_bounded(path, most_rows=ROWS)
    assert pa.total_allocated_bytes() <= allocated + (1 << 20)
    assert pa.default_memory_pool().max_memory() <= max(before, allocated + (1 << 20))


def test_a_file_of_this_package_is_read(tmp_path: Path) -> None:
    parquet.write(tmp_path / "e.parquet", [episode()])
    (read,) = read_bounded(tmp_path / "e.parquet", most_rows=3)
    assert [step.action for step in read.steps] == [step.action for step in episode().steps]
    with pytest.raises(TrajectoryError, match="3 rows; at most 2 are allowed"):
        read_bounded(tmp_path / "e.parquet", most_rows=2)


def test_a_file_without_rows_is_no_damaged_one(tmp_path: Path) -> None:
    parquet.write(tmp_path / "e.parquet", [])
    assert read_bounded(tmp_path / "e.parquet", most_rows=3) == list(parquet.stream(tmp_path / "e.parquet")) == []
    with parquet.opened(tmp_path / "e.parquet") as file:
        assert file.read(["seed", "task"]).schema.names == ["seed", "task"]


def test_large_columns_are_packed_and_small_ones_are_not(tmp_path: Path) -> None:
    seen = Observation("a long text " * 1000, b"\x89PNG" * 5000, np.zeros(5000, np.float32))
    long = replace(episode(), steps=[replace(step, observation=seen) for step in episode().steps])
    parquet.write(tmp_path / "e.parquet", [long])
    with pq.ParquetFile(tmp_path / "e.parquet") as file:
        group = file.metadata.row_group(0)
        columns = [group.column(number) for number in range(group.num_columns)]
    packed = {each.path_in_schema for each in columns if each.compression == "ZSTD"}
    assert packed == {"text", "image.bytes", "vector.list.element"}
    assert {each.compression for each in columns if each.path_in_schema not in packed} == {"UNCOMPRESSED"}
    (read,) = read_bounded(tmp_path / "e.parquet", most_rows=3)
    assert read.steps[0].observation.image == seen.image


def test_a_byte_that_changed_in_the_values_is_noticed(tmp_path: Path) -> None:
    """Also in a file of a run folder, which is read without bounds."""
    path = tmp_path / "e.parquet"
    parquet.write(path, [episode()])
    whole = path.read_bytes()
    footer = len(whole) - 8 - int.from_bytes(whole[-8:-4], "little")
    with pq.ParquetFile(path) as file:
        column = file.metadata.row_group(0).column(3)
        end = column.data_page_offset + column.total_compressed_size
    assert end < footer
    path.write_bytes(whole[: end - 1] + bytes([whole[end - 1] ^ 1]) + whole[end:])
    for read in (parquet.read, lambda file: read_bounded(file, most_rows=3)):
        with pytest.raises(TrajectoryError):
            read(path)


@pytest.mark.parametrize("codec", [14, 1, 63])
def test_a_footer_on_which_pyarrow_would_end_the_process_is_refused(tmp_path: Path, codec: int) -> None:
    """Its accessors throw through frames that cannot pass C++'s exceptions on."""
    path = tmp_path / "e.parquet"
    parquet.write(path, [episode()])
    whole = path.read_bytes()
    place = whole.index(b"\x15\x00\x16", len(whole) - 8 - int.from_bytes(whole[-8:-4], "little"))  # codec: none, as 0
    changed = bytearray(whole)
    changed[place + 1] = (2 * codec) & 127
    path.write_bytes(changed)
    for read in (lambda file: list(parquet.stream(file)), lambda file: read_bounded(file, most_rows=3)):
        with pytest.raises(TrajectoryError, match="not stored as this package stores it"):
            read(path)


def test_of_a_runs_file_only_what_is_asked_for_is_unpacked_and_only_within_bounds(tmp_path: Path) -> None:
    path = write(tmp_path / "e.parquet", rows(8, action="0" * (2 << 20)), row_group_size=4)
    limits = Limits(rows=8, groups=2, beyond=10 << 20)
    with bounded(path, parquet.SCHEMA, limits) as file:
        assert file.read(["seed", "task"]).num_rows == 8
        assert [batch.num_rows for batch in file.batches(3, first=2)] == [1, 1, 3, 1]
        with pytest.raises(TrajectoryError, match="would unpack to"):
            file.read()
    few = bounded(path, parquet.SCHEMA, replace(limits, beyond=4 << 20))
    with few as file, pytest.raises(TrajectoryError, match="would unpack to"):
        next(file.batches(3))


def test_a_file_that_is_cut_while_it_is_read_is_refused(tmp_path: Path) -> None:
    parquet.write(tmp_path / "e.parquet", [episode(steps=300)])
    with pytest.raises(TrajectoryError, match=r"e\.parquet"), parquet.opened(tmp_path / "e.parquet") as file:
        os.truncate(tmp_path / "e.parquet", 0)
        file.read()


def test_headers_nested_without_end_are_refused() -> None:
    for endless in (b"\x1c" * 5000, b"\x19" * 5000):  # structs in structs, lists in lists
        with pytest.raises(TrajectoryError, match="nested too deeply"):
            ThriftReader(endless, 0, len(endless)).struct()
