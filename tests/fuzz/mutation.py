"""Mutations of bytes, of JSON and of Parquet whose checksums are right again."""

from __future__ import annotations

import copy
import io
import json
import struct
import zlib
from collections.abc import Callable, Iterator, Sequence
from random import Random
from typing import Any

import pyarrow.parquet as pq

from digirl_dist.storage.parquet_bounds import ThriftReader

_NASTY_BYTES = (b"\x00", b"\xff" * 8, b"\x7f" + b"\xff" * 7, b"[" * 2000, b"{" * 500, b"9" * 400, b"\n", b"\x1b[2J")
_NASTY_VALUES: tuple[Any, ...] = (
    *(None, True, -1, 0, 2**31, 2**63, -(2**63) - 1, 10**15, 10**400, 1e308, -0.0, float("nan"), float("inf")),
    *("", "x" * 10_000, "\ud800", "\x1b[31m", "../../etc/passwd", "nan", [], {}, [[]], {"": {}}, [0] * 1000),
)


def mutated(random: Random, samples: Sequence[bytes]) -> bytes:
    """Returns one of the samples with one to eight changes."""
    data = bytearray(random.choice(samples))
    for _ in range(random.choice((1, 1, 1, 2, 3, 8))):
        random.choice(_CHANGES)(random, data, samples)
    return bytes(data)


def mutated_json(random: Random, samples: Sequence[bytes]) -> bytes:
    """Returns a sample in which some values are others; now and then, one that is no JSON any more."""
    if random.random() < 0.3:
        return mutated(random, samples)
    return json.dumps(with_other_values(random, json.loads(random.choice(samples)))).encode()


def with_other_values(random: Random, value: Any) -> Any:
    """Replaces some of the values inside, or leaves them out; returns the value."""
    for _ in range(random.choice((1, 1, 2, 4))):
        places = list(_places(value))
        if not places:
            break
        inside, key = random.choice(places)
        if random.random() < 0.15:
            del inside[key]
        else:
            inside[key] = copy.deepcopy(random.choice((*_NASTY_VALUES, random.choice(places)[0])))
    return value


def pages(data: bytes) -> list[tuple[int, int, int]]:
    """Returns, for each page of a Parquet file, where its checksum's five bytes lie and where it begins and ends."""
    group = pq.ParquetFile(io.BytesIO(data)).metadata.row_group(0)  # of our own file, whose footer is right
    found = []
    for number in range(group.num_columns):
        at = group.column(number).data_page_offset
        end = at + group.column(number).total_compressed_size
        while at < end:
            page, begin = ThriftReader(data, at, end).struct()
            place = data.find(_varint(page[4]), at, begin)
            if len(_varint(page[4])) == 5:  # a shorter one has no room for others
                found.append((place, begin, begin + page[3]))
            at = begin + page[3]
    return found


def _varint(number: int) -> bytes:
    """Returns a number of 32 bits as Thrift writes it, in zigzag."""
    zigzag = (number << 1) ^ (number >> 63)
    out = bytearray()
    while zigzag > 127:
        out.append(zigzag & 127 | 128)
        zigzag >>= 7
    return bytes([*out, zigzag])


def with_right_checksums(data: bytes, pages: Sequence[tuple[int, int, int]]) -> bytes:
    """Returns a Parquet file whose pages, (place of the checksum, beginning, end) each, have right checksums again.

    A checksum is a zigzag varint, which five bytes can hold whatever its value is.
    """
    out = bytearray(data)
    for place, begin, end in pages:
        (number,) = struct.unpack("<i", struct.pack("<I", zlib.crc32(out[begin:end])))
        zigzag = (number << 1) ^ (number >> 63)
        out[place : place + 5] = bytes((zigzag >> 7 * k) & 127 | (128 if k < 4 else 0) for k in range(5))
    return bytes(out)


def _places(value: Any) -> Iterator[tuple[Any, Any]]:
    """Yields every container with each of its keys."""
    keys = list(value) if isinstance(value, dict) else range(len(value)) if isinstance(value, list) else ()
    for key in keys:
        yield value, key
        yield from _places(value[key])


Change = Callable[[Random, bytearray, Sequence[bytes]], None]


def _span(random: Random, data: bytearray) -> slice:
    start = random.randrange(len(data) + 1)
    return slice(start, min(len(data), start + random.choice((1, 2, 4, 16, 256))))


def _flip(random: Random, data: bytearray, _: Sequence[bytes]) -> None:
    if data:
        data[random.randrange(len(data))] ^= 1 << random.randrange(8)


def _overwrite(random: Random, data: bytearray, _: Sequence[bytes]) -> None:
    place = _span(random, data)
    data[place] = random.randbytes(place.stop - place.start)


def _number(random: Random, data: bytearray, _: Sequence[bytes]) -> None:
    """Little-endian numbers and varints of extreme size."""
    place = random.randrange(len(data) + 1)
    extreme = random.choice((0, 1, -1, 2**31 - 1, -(2**31), 2**63 - 1, random.getrandbits(31)))
    data[place : place + 8] = struct.pack("<q", extreme)[: random.choice((1, 2, 4, 8))]


def _cut(random: Random, data: bytearray, _: Sequence[bytes]) -> None:
    del data[_span(random, data)]


def _truncate(random: Random, data: bytearray, _: Sequence[bytes]) -> None:
    del data[random.randrange(len(data) + 1) :]


def _repeat(random: Random, data: bytearray, _: Sequence[bytes]) -> None:
    place = _span(random, data)
    data[place.start : place.start] = data[place] * random.choice((1, 2, 50))


def _insert(random: Random, data: bytearray, _: Sequence[bytes]) -> None:
    place = random.randrange(len(data) + 1)
    data[place:place] = random.choice(_NASTY_BYTES)


def _splice(random: Random, data: bytearray, samples: Sequence[bytes]) -> None:
    other = bytearray(random.choice(samples))
    data[_span(random, data)] = other[_span(random, other)]


_CHANGES: tuple[Change, ...] = (_flip, _flip, _overwrite, _number, _cut, _truncate, _repeat, _insert, _splice)
