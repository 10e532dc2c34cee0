"""Holds a Parquet file from another machine to bounds before anything in it is unpacked.

The footer of a small file can promise little and unpack to gigabytes, so the header of every page is read here, as the
reader of Arrow will read it: Thrift's compact protocol, https://parquet.apache.org/docs/file-format. Encodings in which
few bytes stand for many values (dictionaries, deltas) are refused, and every page must have a checksum.
"""

from __future__ import annotations

import mmap
import os
import struct
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
_DEEPEST = 4

Thrift = dict[int, Any]
"""A struct of Thrift: the value of each field by its number; lists and binaries are passed over."""


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
        _require(footer <= min(_LONGEST_FOOTER, size), f"its footer has {footer} bytes")
        opened = pq.ParquetFile(
            file,
            page_checksum_verification=True,
            thrift_string_size_limit=_LONGEST_FOOTER,
            thrift_container_size_limit=_LONGEST_LIST,
        )
        _check_footer(opened, schema, most_rows)
        group = opened.metadata.row_group(0)
        columns = [(group.column(number), opened.schema.column(number)) for number in range(group.num_columns)]
        _require(sum(column.total_compressed_size for column, _ in columns) <= size, "its columns overlap")
        unpacked = sum(
            _check_pages(content, column, group.num_rows, kind.max_repetition_level > 0) for column, kind in columns
        )
        _require(unpacked <= size + MOST_UNPACKED, f"{size} bytes would unpack to {unpacked}")
    return opened


def _check_footer(opened: pq.ParquetFile, schema: pa.Schema, most_rows: int) -> None:
    metadata = opened.metadata
    _require(0 < metadata.num_rows <= most_rows, f"it has {metadata.num_rows} rows; at most {most_rows} are allowed")
    _require(metadata.num_row_groups == 1, f"it has {metadata.num_row_groups} row groups")
    _require(metadata.row_group(0).num_rows == metadata.num_rows, "its footer contradicts itself")
    _require(str(metadata.created_by).startswith(_WRITER), f"it was written by {str(metadata.created_by)[:80]}")
    same = opened.schema_arrow.equals(schema, check_metadata=False)
    _require(same, f"its columns are not those of a trajectory: {', '.join(opened.schema_arrow.names)[:300]}")


def _check_pages(content: mmap.mmap, column: pq.ColumnChunkMetaData, rows: int, lists: bool) -> int:
    """Returns the bytes that the column's pages unpack to; they must fill its part of the file exactly."""
    name, at = column.path_in_schema, column.data_page_offset
    end = at + column.total_compressed_size
    plain = not column.has_dictionary_page and column.compression in ("ZSTD", "UNCOMPRESSED") and not column.file_path
    _require(plain and 0 < at <= end <= len(content), f"column {name} is not stored as this package stores it")
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
    most = rows + (unpacked // _SMALLEST_FLOAT if lists else 0)
    _require(at == end and rows <= values <= most, f"column {name} has {values} values in {rows} rows")
    return unpacked


class ThriftReader:
    """Reads one struct of Thrift's compact protocol from ``content[at:end]``."""

    def __init__(self, content: mmap.mmap | bytes, at: int, end: int) -> None:
        self._content = content
        self._at = at
        self._end = end

    def struct(self) -> tuple[Thrift, int]:
        """Returns the struct and where it ends. Raises TrajectoryError."""
        return self._fields(0), self._at

    def _fields(self, depth: int) -> Thrift:
        _require(depth < _DEEPEST, "a page header is nested too deeply")
        found: Thrift = {}
        number = 0
        while head := self._byte():
            number = number + (head >> 4) if head >> 4 else self._integer()
            found[number] = self._value(head & 15, depth)
        return found

    def _value(self, kind: int, depth: int) -> Any:
        match kind:
            case 1 | 2:
                return kind == 1
            case 3:
                return self._byte()
            case 4 | 5 | 6:
                return self._integer()
            case 8:
                return self._skip(self._varint())
            case 12:
                return self._fields(depth + 1)
        raise TrajectoryError(f"a page header has a field of type {kind}")

    def _byte(self) -> int:
        _require(self._at < self._end, "a page header is cut off")
        self._at += 1
        return self._content[self._at - 1]

    def _varint(self) -> int:
        value = 0
        for shift in range(0, 70, 7):
            byte = self._byte()
            value |= (byte & 127) << shift
            if byte < 128:
                return value
        raise TrajectoryError("a number in a page header does not end")

    def _integer(self) -> int:
        value = self._varint()
        return (value >> 1) ^ -(value & 1)

    def _skip(self, length: int) -> None:
        self._at += length


def _require(holds: bool, otherwise: str) -> None:
    if not holds:
        raise TrajectoryError(otherwise)
