"""Lossless differences between two versions of a tensor: which of its numbers changed, and by what.

Numbers count as unsigned integers of their width: after a small update, a number in bfloat16 has moved by one unit or
not at all. A delta is a sequence of blocks, so both ends need memory for one block only. A sparse block lists the gaps
between changed numbers in Golomb-Rice coding [1], the signs of the changes, which of them exceed one unit, and by how
much, the bytes of equal rank together. Where most numbers changed, a dense block has the changes of all; what no coding
makes smaller is sent as it is. zstd packs each of these rows.

[1] R. F. Rice, Some practical universal noiseless coding techniques, JPL Publication 79-22, 1979.
"""

from __future__ import annotations

import math
import struct
from collections.abc import Callable, Iterator
from enum import IntEnum

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

BLOCK = 1 << 22
"""Bytes of the tensor per block; every width divides it."""
_LEVEL = 1
_HEAD = struct.Struct(">BBII")
"""Kind; of a sparse block also the low bits of a gap, the number of changes, and the bits of all gaps' unary parts."""
_LENGTH = struct.Struct(">I")
_MOST_LOW_BITS = 22
_SPARSE_SHARE = 0.75
"""Beyond this share of changed numbers, listing them saves a few percent at most and takes three times as long."""

Read = Callable[[int], bytes | bytearray | memoryview]
"""Reads exactly so many bytes; fewer only where there are no more."""
Numbers = NDArray[np.unsignedinteger]
Places = NDArray[np.intp]
Row = NDArray[np.uint8]


class _Kind(IntEnum):
    unchanged = 0
    sparse = 1
    dense = 2
    full = 3


def encode(new: memoryview, base: memoryview, width: int) -> bytes:
    """Returns the delta from ``base`` to ``new``, equally long; ``width`` is the size of one number in bytes."""
    if len(new) != len(base):
        raise ValueError(f"a delta is made between versions of one size, not {len(base)} and {len(new)} bytes")
    dtype = _dtype(width)
    blocks = (slice(start, start + BLOCK) for start in range(0, len(new), BLOCK))
    return b"".join(_encoded(np.frombuffer(new[at], dtype), np.frombuffer(base[at], dtype)) for at in blocks)


def decode(delta: Read, base: Read, size: int, width: int) -> Iterator[memoryview]:
    """Yields the ``size`` bytes of the new version, block by block. Raises ValueError for no delta of such a base.

    Whatever the delta says, the memory of a few blocks is enough.
    """
    dtype = _dtype(width)
    for start in range(0, size, BLOCK):
        count = min(BLOCK, size - start)
        before = base(count)
        if len(before) != count or count % dtype.itemsize:
            raise ValueError(f"a block of {count} bytes was expected, but the base has {len(before)}")
        yield _decoded(_Rows(delta), np.frombuffer(before, dtype)).view(np.uint8).data


def _dtype(width: int) -> np.dtype[np.unsignedinteger]:
    if width not in (1, 2, 4, 8, 16):
        raise ValueError(f"no numbers are {width} bytes wide")
    return np.dtype(f"<u{min(width, 8)}")


def _encoded(new: Numbers, base: Numbers) -> bytes:
    """Returns a block of the smallest kind."""
    places = np.flatnonzero(new != base)
    if not len(places):
        return _HEAD.pack(_Kind.unchanged, 0, 0, 0)
    if len(places) > _SPARSE_SHARE * len(new):
        block = _HEAD.pack(_Kind.dense, 0, 0, 0) + _frames(_by_rank(_zigzag(new - base)))
    else:
        low_bits = max(0, int(math.log2(math.log(2) * len(new) / len(places))))
        unary, low = _gap_rows(places, low_bits)
        rows = np.packbits(unary), low, *_change_rows(new[places] - base[places])
        block = _HEAD.pack(_Kind.sparse, low_bits, len(places), len(unary)) + _frames(*rows)
    return block if len(block) < _HEAD.size + new.nbytes else _HEAD.pack(_Kind.full, 0, 0, 0) + new.tobytes()


def _decoded(rows: _Rows, base: Numbers) -> Numbers:
    kind, low_bits, count, unary_bits = _HEAD.unpack(rows.exactly(_HEAD.size).data)
    match kind:
        case _Kind.unchanged:
            return base
        case _Kind.full:
            return rows.exactly(base.nbytes).view(base.dtype)
        case _Kind.dense:
            zigzag = rows.numbers(len(base), base.dtype)
            new: Numbers = base + ((zigzag >> 1) ^ -(zigzag & 1))
            return new
        case _Kind.sparse if count <= len(base) and low_bits <= _MOST_LOW_BITS and unary_bits <= count + len(base):
            new = base.copy()
            new[_places(rows, low_bits, count, unary_bits, len(base))] += _changes(rows, count, base.dtype)
            return new
    raise ValueError(f"no block of {len(base)} numbers is of kind {kind} with {count} changes of {unary_bits} bits")


def _gap_rows(places: Places, low_bits: int) -> tuple[NDArray[np.bool_], Row]:
    """Returns the unary codes of the gaps' high parts, a mark at the end of each, and the bits of the low parts."""
    gaps = np.diff(places, prepend=-1) - 1
    ends = np.cumsum((gaps >> low_bits) + 1)
    unary = np.zeros(ends[-1], np.bool_)
    unary[ends - 1] = True
    low = [np.packbits(gaps & (1 << bit)) for bit in range(low_bits)]
    return unary, np.concatenate([np.empty(0, np.uint8), *low])


def _places(rows: _Rows, low_bits: int, count: int, unary_bits: int, size: int) -> Places:
    """Inverts ``_gap_rows``. Raises ValueError for places outside of ``size`` numbers."""
    ends = np.flatnonzero(rows.bits(unary_bits))
    if len(ends) != count:
        raise ValueError(f"{len(ends)} numbers changed, not {count}")
    gaps = np.diff(ends, prepend=-1) - 1 << low_bits
    low = rows.row(low_bits * _bytes(count)).reshape(low_bits, _bytes(count))
    for bit in range(low_bits):
        gaps += np.unpackbits(low[bit], count=count).astype(np.intp) << bit
    places = np.cumsum(gaps + 1) - 1
    if count and places[-1] >= size:
        raise ValueError(f"number {places[-1]} of {size} cannot change")
    return places


def _change_rows(changes: Numbers) -> tuple[Row, Row, Row]:
    """Returns the bits of the signs, those of the changes larger than one unit, and the bytes of these."""
    signed = changes.view(f"<i{changes.itemsize}")
    excess = (np.abs(signed) - 1).view(changes.dtype)
    is_larger = excess != 0
    return np.packbits(signed < 0), np.packbits(is_larger), _by_rank(excess[is_larger])


def _changes(rows: _Rows, count: int, dtype: np.dtype[np.unsignedinteger]) -> Numbers:
    """Inverts ``_change_rows``."""
    is_negative, is_larger = rows.bits(count), np.flatnonzero(rows.bits(count))
    sizes = np.ones(count, dtype)
    sizes[is_larger] += rows.numbers(len(is_larger), dtype)
    np.negative(sizes, out=sizes, where=is_negative)
    return sizes


def _zigzag(changes: Numbers) -> Numbers:
    """Returns small numbers for small changes of either sign."""
    sign = changes.view(f"<i{changes.itemsize}") >> (8 * changes.itemsize - 1)
    zigzag: Numbers = np.bitwise_xor(changes << 1, sign.view(changes.dtype))
    return zigzag


def _by_rank(numbers: Numbers) -> Row:
    """Returns the lowest bytes of all numbers, then the next ones, and so on."""
    return np.ascontiguousarray(numbers.view(np.uint8).reshape(-1, numbers.itemsize).T).reshape(-1)


def _frames(*rows: Row) -> bytes:
    codec = pa.Codec("zstd", compression_level=_LEVEL)
    frames = [codec.compress(row, asbytes=True) for row in rows]
    return b"".join(part for frame in frames for part in (_LENGTH.pack(len(frame)), frame))


def _bytes(bits: int) -> int:
    return (bits + 7) // 8


class _Rows:
    """The rows of a block, whose lengths are known before they are read. Raises ValueError for others."""

    def __init__(self, delta: Read) -> None:
        self._delta = delta
        self._codec = pa.Codec("zstd")

    def exactly(self, size: int) -> Row:
        data = self._delta(size)
        if len(data) != size:
            raise ValueError(f"the delta ends early: {len(data)} of {size} bytes")
        return np.frombuffer(data, np.uint8)

    def row(self, size: int) -> Row:
        (length,) = _LENGTH.unpack(self.exactly(_LENGTH.size).data)
        if length > size + size // 128 + 64:  # zstd makes nothing that much longer
            raise ValueError(f"a row of {size} bytes cannot have a frame of {length}")
        frame = self.exactly(length)
        try:
            row = np.frombuffer(self._codec.decompress(frame, decompressed_size=size), np.uint8)
        except OSError as error:  # pyarrow's error for a damaged frame, no fault of a disk
            raise ValueError(f"a damaged frame: {error}") from error
        if len(row) != size:
            raise ValueError(f"a row of {size} bytes was expected, not {len(row)}")
        return row

    def bits(self, count: int) -> NDArray[np.bool_]:
        return np.unpackbits(self.row(_bytes(count)), count=count).view(np.bool_)

    def numbers(self, count: int, dtype: np.dtype[np.unsignedinteger]) -> Numbers:
        """Inverts ``_by_rank``."""
        by_rank = self.row(count * dtype.itemsize).reshape(dtype.itemsize, count)
        return np.ascontiguousarray(by_rank.T).reshape(-1).view(dtype)
