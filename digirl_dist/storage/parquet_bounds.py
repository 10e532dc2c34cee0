"""Holds a Parquet file from another machine to bounds before anything in it is unpacked.

The footer of a small file can promise little and unpack to gigabytes, so the header of every page is read here, as the
reader of Arrow will read it: Thrift's compact protocol, https://parquet.apache.org/docs/file-format. Encodings in which
few bytes stand for many values (dictionaries, deltas) are refused, and every page must have a checksum.
"""

from __future__ import annotations

import mmap
import os
import struct
from dataclasses import dataclass
from typing import Any, BinaryIO

import pyarrow as pa
import pyarrow.parquet as pq

from digirl_dist.errors import TrajectoryError

MOST_UNPACKED = 32 << 20
"""Bytes that a file may unpack to beyond its own size: screenshots are compressed already, and vectors are small."""

_MAGIC = b"PAR1"
_LONGEST_FOOTER = 1 << 16
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
"""Of the path of a column that is no list: ``observation.text``."""

Thrift = dict[int, Any]
"""A struct of Thrift: the value of each field by its number."""


def bounded(file: BinaryIO, schema: pa.Schema, most_rows: int) -> pq.ParquetFile:
    """Returns the file open for reading if it unpacks to little more than its own size.

    Demands exactly the columns of ``schema``, one row group and at most ``most_rows`` rows. Raises TrajectoryError, or
    Arrow's own errors for a footer that is none.
    """
    size = os.fstat(file.fileno()).st_size
    _require(size > 2 * len(_MAGIC) + 4, f"it has {size} bytes")
    with mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as content:
        footer, magic = _TAIL.unpack(content[-_TAIL.size :])
        _require(magic == _MAGIC == content[: len(_MAGIC)], "it is not Parquet")
        _require(footer <= min(_LONGEST_FOOTER, size - _TAIL.size), f"its footer has {footer} bytes")
        metadata, _ = ThriftReader(content, size - _TAIL.size - footer, size - _TAIL.size).struct()
        try:
            _check(content, metadata, most_rows)
        except (KeyError, TypeError, AttributeError, ValueError) as error:
            raise TrajectoryError(f"its footer lacks something, or has it in another form: {error}") from error
    opened = pq.ParquetFile(
        file,
        page_checksum_verification=True,
        pre_buffer=False,
        thrift_string_size_limit=_LONGEST_FOOTER,
        thrift_container_size_limit=_LONGEST_LIST,
    )
    same = opened.schema_arrow.equals(schema, check_metadata=False)
    _require(same, f"its columns are not those of a trajectory: {', '.join(opened.schema_arrow.names)[:300]}")
    return opened


def _check(content: mmap.mmap, metadata: Thrift, most_rows: int) -> None:
    """Checks a footer, field by field; pyarrow's own accessors end the process on some that are wrong."""
    rows, groups, writer = metadata[3], metadata[4], metadata[6].decode()
    _require(0 < rows <= most_rows, f"it has {rows} rows; at most {most_rows} are allowed")
    _require(len(groups) == 1 and groups[0][3] == rows, f"it has {len(groups)} row groups")
    _require(writer.startswith(_WRITER), f"it was written by {writer[:80]}")
    columns = [_Column.of(chunk) for chunk in groups[0][1]]
    _require(sum(column.size for column in columns) <= len(content), "its columns overlap")
    unpacked = sum(_check_pages(content, column, rows) for column in columns)
    _require(unpacked <= len(content) + MOST_UNPACKED, f"{len(content)} bytes would unpack to {unpacked}")


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
        _require(ours, f"column {'.'.join(path)[:100]} is not stored as this package stores it")
        return cls(".".join(path), told[9], told[7], len(path) > _MOST_PARTS)


def _check_pages(content: mmap.mmap, column: _Column, rows: int) -> int:
    """Returns the bytes that the column's pages unpack to; they must fill its part of the file exactly."""
    name, at, end = column.name, column.start, column.start + column.size
    _require(0 < at <= end <= len(content), f"column {name} lies outside of the file")
    unpacked = values = 0
    while at < end:
        page, at = ThriftReader(content, at, end).struct()
        data = page.get(5)
        if page.get(1) != _DATA_PAGE or 4 not in page or not isinstance(data, dict):
            raise TrajectoryError(f"column {name} has a page without checksum, or of another kind than data")
        encodings = data.get(2), data.get(3), data.get(4)
        _require(encodings == (_PLAIN, _RLE, _RLE), f"column {name} has encodings {encodings}")
        sizes = [size if type(size) is int else -1 for size in (page.get(2), page.get(3), data.get(1))]
        _require(min(sizes) >= 0, f"column {name} has a page of sizes {sizes}")
        unpacked, at, values = unpacked + sizes[0], at + sizes[1], values + sizes[2]
        _require(unpacked <= len(content) + MOST_UNPACKED, f"column {name} would unpack to more than {unpacked} bytes")
    most = rows + (unpacked // _SMALLEST_FLOAT if column.is_list else 0)
    _require(at == end and rows <= values <= most, f"column {name} has {values} values in {rows} rows")
    return unpacked


class ThriftReader:
    """Reads one struct of Thrift's compact protocol from ``content[at:end]``, of at most 64 KiB."""

    def __init__(self, content: mmap.mmap | bytes, at: int, end: int) -> None:
        self._content = content[at : min(end, at + _LONGEST_FOOTER)]
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
        value = self._byte()
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
        value = self._varint()
        return (value >> 1) ^ -(value & 1)

    def _bytes(self, length: int) -> bytes:
        _require(length <= len(self._content) - self._at, "a text in a header is longer than it")
        self._at += length
        return self._content[self._at - length : self._at]


def _require(holds: bool, otherwise: str) -> None:
    if not holds:
        raise TrajectoryError(otherwise)
