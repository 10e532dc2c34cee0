"""The digest that identifies contents everywhere: xxh3-128. It detects accidental damage, not an attack."""

from __future__ import annotations

import os

import xxhash

_CHUNK = 1 << 20


def digest(data: bytes | bytearray | memoryview) -> str:
    """Returns the digest of ``data`` as 32 hexadecimal digits."""
    return xxhash.xxh3_128_hexdigest(data)


def file_digest(path: str | os.PathLike[str]) -> str:
    """Returns the digest of a file's content, using constant memory."""
    state = xxhash.xxh3_128()
    buffer = memoryview(bytearray(_CHUNK))
    with open(path, "rb", buffering=0) as file:
        while count := file.readinto(buffer):
            state.update(buffer[:count])
    return state.hexdigest()
