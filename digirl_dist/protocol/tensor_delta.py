"""Lossless differences between two versions of a tensor: XOR, the bytes of equal rank together, zstd.

A small update leaves sign, exponent and the upper bits of most numbers alone, so the XOR of two versions is mostly
zeros there; with all high bytes in a row, zstd packs them to almost nothing. A delta is a sequence of blocks, each the
length of its frame (4 bytes, big-endian) and the frame, so both ends need memory for a few blocks only.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator

import numpy as np
import pyarrow as pa

BLOCK = 1 << 22
"""Bytes of the tensor per block; every width divides it."""
_LEVEL = 1
_LENGTH = 4

Read = Callable[[int], bytes | bytearray | memoryview]
"""Reads exactly so many bytes; fewer only where there are no more."""


def encode(new: memoryview, base: memoryview, width: int) -> bytes:
    """The delta from ``base`` to ``new``, which are equally long; ``width`` is the size of one number in bytes."""
    if len(new) != len(base):
        raise ValueError(f"a delta is made between versions of one size, not {len(base)} and {len(new)} bytes")
    codec = pa.Codec("zstd", compression_level=_LEVEL)
    parts = []
    for start in range(0, len(new), BLOCK):
        changed = np.bitwise_xor(_bytes(new[start : start + BLOCK]), _bytes(base[start : start + BLOCK]))
        shuffled = np.concatenate([changed[rank::width] for rank in range(width)])
        frame = codec.compress(shuffled, asbytes=True)
        parts += [len(frame).to_bytes(_LENGTH, "big"), frame]
    return b"".join(parts)


def decode(delta: Read, base: Read, size: int, width: int) -> Iterator[memoryview]:
    """The ``size`` bytes of the new version, block by block. Raises ValueError for what is no delta of such a base."""
    codec = pa.Codec("zstd", compression_level=_LEVEL)
    for start in range(0, size, BLOCK):
        count = min(BLOCK, size - start)
        length = int.from_bytes(delta(_LENGTH), "big")
        if length > count + BLOCK // 8:  # zstd makes nothing that much longer
            raise ValueError(f"a block of {count} bytes cannot have a frame of {length}")
        changed, before = _unpack(codec, delta(length), count), _bytes(base(count))
        if len(changed) != count or len(before) != count:
            raise ValueError(f"a block of {count} bytes was expected, but the delta or its base ends early")
        new = np.empty(count, np.uint8)
        for rank, row in enumerate(changed.reshape(width, -1)):
            np.bitwise_xor(row, before[rank::width], out=new[rank::width])
        yield new.data


def _unpack(codec: pa.Codec, frame: bytes | bytearray | memoryview, size: int) -> np.ndarray:
    try:
        return _bytes(codec.decompress(frame, decompressed_size=size))
    except OSError as error:  # pyarrow's error for a damaged frame, no fault of a disk
        raise ValueError(f"a damaged frame: {error}") from error


def _bytes(data: object) -> np.ndarray:
    return np.frombuffer(data, np.uint8)  # type: ignore[call-overload,no-any-return]
