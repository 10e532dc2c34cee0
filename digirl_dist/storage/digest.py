"""The digest that identifies contents everywhere: xxh3-128. It detects accidental damage, not an attack."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import BinaryIO

import xxhash

from digirl_dist.settings import regular_file

_CHUNK = 1 << 20


def digest(data: bytes | bytearray | memoryview) -> str:
    """Returns the digest of ``data`` as 32 hexadecimal digits."""
    return xxhash.xxh3_128_hexdigest(data)


def file_digest(path: Path, most: int = regular_file.SMALL) -> str:
    """Returns the digest of a file's content, using constant memory. Raises OSError as ``regular_file.opened`` does."""
    with regular_file.opened(path, 0, most=most) as file:
        return part_digest(file, 0, sys.maxsize)


def part_digest(file: BinaryIO, place: int, size: int) -> str:
    """Returns the digest of ``size`` bytes of an unbuffered file from ``place`` on, or of those that there are."""
    state = xxhash.xxh3_128()
    buffer = memoryview(bytearray(_CHUNK))
    file.seek(place)
    while count := file.readinto(buffer[:size]):  # type: ignore[attr-defined]
        state.update(buffer[:count])
        size -= count
    return state.hexdigest()
