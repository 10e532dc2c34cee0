"""Holds a Parquet file that a stranger may have made to bounds before anything in it is unpacked.

The footer of a small file can promise little and unpack to gigabytes, so the header of every page is read here, as the
reader of Arrow will read it: Thrift's compact protocol, https://parquet.apache.org/docs/file-format. Encodings in which
few bytes stand for many values (dictionaries, deltas) are refused, and every page must have a checksum.
"""

from __future__ import annotations

import os
import struct
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, BinaryIO

import pyarrow as pa
import pyarrow.parquet as pq

from digirl_dist.errors import TrajectoryError
from digirl_dist.settings import regular_file

_MAGIC = b"PAR1"
_LONGEST_FOOTER = 1 << 22
_LONGEST_HEADER = 1 << 12
"""Of a page: ours have less than a hundred bytes."""
_LONGEST_LIST = 1000
_TAIL = struct.Struct("<I4s")
_DATA_PAGE, _PLAIN, _RLE = 0, 0, 3
_WRITER = "parquet-cpp-arrow"
_SMALLEST_FLOAT = 4
_DEEPEST = 10
_CODECS = (0, 6)
"""Uncompressed, and zstd."""
_CHUNK_FIELDS = {2, 3}
_COLUMN_FIELDS = {1, 2, 3, 4, 5, 6, 7, 9, 13, 16}
"""Of ColumnChunk and ColumnMetaData: no path to another file, no dictionary, no filter, no encryption."""
_MOST_PARTS = 2
"""Of the path of a column that is no list: ``image.bytes``."""


Thrift = dict[int, Any]
"""A struct of Thrift: the value of each field by its number."""


@dataclass(frozen=True)
class Limits:
    """What a file of a run folder may be made of."""

    rows: int = 1 << 31
    groups: int = _LONGEST_LIST
    footer: int = _LONGEST_FOOTER
    beyond: int = 1 << 29
    """Bytes that what is read at once may unpack to beyond the size of the file: texts of many episodes shrink well."""


OF_A_RUN = Limits()


class BoundedFile:
    """A file whose footer has been checked; pages are checked when they are to be read."""

    def __init__(self, content: _OnDisk, groups: Sequence[_Group], file: pq.ParquetFile, limits: Limits) -> None:
        self._content = content
        self._groups = groups
        self._file = file
        self._limits = limits

    @property
    def columns(self) -> list[str]:
        names: list[str] = self._file.schema_arrow.names
        return names

    def read(self, columns: Sequence[str] | None = None) -> pa.Table:
        """Returns all rows. Raises TrajectoryError for pages that unpack to too much, or Arrow's errors."""
        if not self._groups:
            return self._file.schema_arrow.empty_table().select(self.columns if columns is None else columns)
        self._check(self._groups, columns)
        return self._file.read(columns=columns, use_threads=False)

    def batches(self, rows: int, first: int = 0) -> Iterator[pa.RecordBatch]:
        """Yields the rows from ``first`` on, so many at once; reads no earlier row group. Raises as ``read`` does."""
        place = 0
        for number, group in enumerate(self._groups):
            if place + group.rows > first:
                self._check([group], None)
                for batch in self._file.iter_batches(batch_size=rows, row_groups=[number], use_threads=False):
                    place += batch.num_rows
                    if place > first:
                        yield batch.slice(max(0, first - place + batch.num_rows))
            else:
                place += group.rows

    def _check(self, groups: Sequence[_Group], names: Sequence[str] | None) -> None:
        unpacked, most = 0, len(self._content) + self._limits.beyond
        for group in groups:
            for column in group.columns:
                if names is None or column.name.split(".")[0] in names:
                    unpacked += _check_pages(self._content, column, group.rows, most)
        _require(unpacked <= most, f"{len(self._content)} bytes would unpack to {unpacked}")


@contextmanager
def bounded(path: Path, schema: pa.Schema, limits: Limits) -> Iterator[BoundedFile]:
    """Opens a file that has the columns of ``schema``, so that reading it takes memory as its size is.

    Raises TrajectoryError, OSError, or Arrow's own errors for a footer that is none.
    """
    with regular_file.opened(path) as file:
        content = _OnDisk(file)
        groups = _groups(content, limits)
        with pq.ParquetFile(
            file,
            page_checksum_verification=True,
            pre_buffer=False,
            thrift_string_size_limit=limits.footer,
            thrift_container_size_limit=_LONGEST_LIST,
        ) as opened:
            found = opened.schema_arrow
            same = found.equals(schema, check_metadata=False)
            _require(same, f"its columns are others: {', '.join(found.names)[:300]}")
            yield BoundedFile(content, groups, opened, limits)


class _OnDisk:
    """The bytes of a file, read when they are asked for: one that is cut meanwhile would end the process as an mmap."""

    def __init__(self, file: BinaryIO) -> None:
        self._file = file.fileno()
        self._size = os.fstat(self._file).st_size

    def __len__(self) -> int:
        return self._size

    def __getitem__(self, place: slice) -> bytes:
        start, end, _ = place.indices(self._size)
        return os.pread(self._file, max(0, end - start), start)


def _groups(content: _OnDisk, limits: Limits) -> list[_Group]:
    """Checks the footer, field by field; pyarrow's own accessors end the process on some that are wrong.

    A file without rows, as that of an iteration whose episodes were all refused, has no groups to be read.
    """
    size = len(content)
    _require(size > 2 * len(_MAGIC) + 4, f"it has {size} bytes")
    footer, magic = _TAIL.unpack(content[-_TAIL.size :])
    _require(magic == _MAGIC == content[: len(_MAGIC)], "it is not Parquet")
    _require(footer <= min(limits.footer, size - _TAIL.size), f"its footer has {footer} bytes")
    metadata, _ = ThriftReader(content, size - _TAIL.size - footer, size - _TAIL.size, limits.footer).struct()
    try:
        writer, rows = metadata[6].decode(), metadata[3]
        groups = [_Group(group[3], [_Column.of(chunk) for chunk in group[1]]) for group in metadata[4]]
        _require(0 <= rows <= limits.rows, f"it has {rows} rows; at most {limits.rows} are allowed")
        fits = len(groups) <= limits.groups and sum(group.rows for group in groups) == rows
        _require(fits and all(group.rows > 0 or rows == 0 for group in groups), f"it has {len(groups)} row groups")
        _require(writer.startswith(_WRITER), f"it was written by {writer[:80]}")
        _require(sum(column.size for group in groups for column in group.columns) <= size, "its columns overlap")
    except (KeyError, TypeError, AttributeError, ValueError) as error:
        raise TrajectoryError(f"its footer lacks something, or has it in another form: {error}") from error
    return groups if rows else []


@dataclass(frozen=True)
class _Column:
    """Where a column lies in the file: its pages fill ``size`` bytes from ``start``."""

    name: str
    start: int
    size: int
    is_list: bool

    @classmethod
    def of(cls, chunk: Thrift) -> _Column:
        """Raises TrajectoryError for one with more, or less, than this package writes: dictionaries, statistics …"""
        told: Thrift = chunk[3]
        path = [part.decode() for part in told[3]]
        ours = chunk.keys() <= _CHUNK_FIELDS and told.keys() <= _COLUMN_FIELDS and told[4] in _CODECS
        if not ours:
            raise TrajectoryError(f"column {'.'.join(path)[:100]} is not stored as this package stores it")
        return cls(".".join(path), told[9], told[7], len(path) > _MOST_PARTS)


@dataclass(frozen=True)
class _Group:
    rows: int
    columns: Sequence[_Column]


def _check_pages(content: _OnDisk, column: _Column, rows: int, most_bytes: int) -> int:
    """Returns the bytes that the column's pages unpack to; they must fill its part of the file exactly."""
    name, at, end = column.name, column.start, column.start + column.size
    _require(0 < at <= end <= len(content), f"column {name} lies outside of the file")
    unpacked = values = 0
    while at < end:
        page, at = ThriftReader(content, at, end, _LONGEST_HEADER).struct()
        data = page.get(5)
        if page.get(1) != _DATA_PAGE or 4 not in page or not isinstance(data, dict):
            raise TrajectoryError(f"column {name} has a page without checksum, or of another kind than data")
        encodings = data.get(2), data.get(3), data.get(4)
        if encodings != (_PLAIN, _RLE, _RLE):
            raise TrajectoryError(f"column {name} has encodings {encodings}")
        sizes = [size if type(size) is int else -1 for size in (page.get(2), page.get(3), data.get(1))]
        _require(min(sizes) >= 0, f"column {name} has a page of sizes {sizes}")
        unpacked, at, values = unpacked + sizes[0], at + sizes[1], values + sizes[2]
        _require(unpacked <= most_bytes, f"column {name} would unpack to more than {unpacked} bytes")
    most = rows + (unpacked // _SMALLEST_FLOAT if column.is_list else 0)
    _require(at == end and rows <= values <= most, f"column {name} has {values} values in {rows} rows")
    return unpacked


class ThriftReader:
    """Reads one struct of Thrift's compact protocol from ``content[at:end]``, of at most ``longest`` bytes."""

    def __init__(self, content: _OnDisk | bytes, at: int, end: int, longest: int = _LONGEST_FOOTER) -> None:
        self._content = content[at : min(end, at + longest)]
        self._before = at
        self._at = 0

    def struct(self) -> tuple[Thrift, int]:
        """Returns the struct and where it ends. Raises TrajectoryError."""
        try:
            return self._fields(0), self._before + self._at
        except IndexError as error:
            raise TrajectoryError("a header is cut off") from error

    def _fields(self, depth: int) -> Thrift:
        _require(depth < _DEEPEST, "a header is nested too deeply")
        found: Thrift = {}
        number = 0
        while head := self._byte():
            number = number + (head >> 4) if head >> 4 else self._integer()
            found[number] = self._value(head & 15, depth)
        return found

    def _value(self, kind: int, depth: int) -> Any:
        match kind:
            case 4 | 5 | 6:
                return self._integer()
            case 8:
                return self._bytes(self._varint())
            case 12:
                return self._fields(depth + 1)
            case 1 | 2:
                return kind == 1
            case 9 | 10:
                return self._list(depth)
            case 3:
                return self._byte()
            case 7:
                return self._bytes(8)
        raise TrajectoryError(f"a header has a field of type {kind}")

    def _list(self, depth: int) -> list[Any]:
        _require(depth < _DEEPEST, "a header is nested too deeply")
        head = self._byte()
        length = head >> 4 if head >> 4 < 15 else self._varint()
        _require(length <= len(self._content) - self._at, "a list in a header is longer than it")
        of_bools = head & 15 in (1, 2)
        return [self._byte() == 1 if of_bools else self._value(head & 15, depth + 1) for _ in range(length)]

    def _byte(self) -> int:
        self._at += 1
        return self._content[self._at - 1]

    def _varint(self) -> int:
        value = self._content[self._at]
        self._at += 1
        if value < 128:
            return value
        value &= 127
        for shift in range(7, 70, 7):
            byte = self._byte()
            value |= (byte & 127) << shift
            if byte < 128:
                return value
        raise TrajectoryError("a number in a header does not end")

    def _integer(self) -> int:
        value = self._content[self._at]
        if value < 128:  # nearly all, and a call for each would be most of the time
            self._at += 1
        else:
            value = self._varint()
        return (value >> 1) ^ -(value & 1)

    def _bytes(self, length: int) -> bytes:
        _require(length <= len(self._content) - self._at, "a text in a header is longer than it")
        self._at += length
        return self._content[self._at - length : self._at]


def _require(holds: bool, otherwise: str) -> None:
    if not holds:
        raise TrajectoryError(otherwise)
