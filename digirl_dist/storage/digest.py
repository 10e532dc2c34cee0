"""The digest that identifies contents everywhere: xxh3-128. It detects accidental damage, not an attack."""

from __future__ import annotations

from pathlib import Path

import xxhash

from digirl_dist.settings import regular_file

_CHUNK = 1 << 20


def digest(data: bytes | bytearray | memoryview) -> str:
    """Returns the digest of ``data`` as 32 hexadecimal digits."""
    return xxhash.xxh3_128_hexdigest(data)


def file_digest(path: Path) -> str:
    """Returns the digest of a file's content, using constant memory. Raises OSError."""
    state = xxhash.xxh3_128()
    buffer = memoryview(bytearray(_CHUNK))
    with regular_file.opened(path, 0) as file:
        while count := file.readinto(buffer):  # type: ignore[attr-defined]
            state.update(buffer[:count])
    return state.hexdigest()
