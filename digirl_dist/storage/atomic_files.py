"""Writes files that appear complete or not at all, even across a power cut.

With ``flushed=False`` a power cut may damage the file. That is faster, and enough for a file whose damage is detected
and which can be made again.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from digirl_dist.storage import strict_json
from digirl_dist.types import Json


def replace(part: Path, path: Path, flushed: bool = True) -> None:
    """Renames ``part`` to ``path``; flushes first the content and then the rename to disk."""
    if flushed:
        flush(part)
    os.replace(part, path)
    if flushed:
        flush(path.parent)


@contextmanager
def appearing(path: Path, flushed: bool = True) -> Iterator[Path]:
    """Yields the path beside ``path`` to write to; renames that at the end, and deletes it if writing has failed."""
    part = path.with_name(path.name + ".part")
    try:
        yield part
        replace(part, path, flushed)
    except BaseException:  # a full disk needs the space, and who interrupts it no half of a file
        with suppress(OSError):
            part.unlink(missing_ok=True)
        raise


def write_text(path: Path, text: str, flushed: bool = True) -> None:
    """Writes a small text file."""
    with appearing(path, flushed) as part:
        part.write_text(text, "utf-8")


def write_json(path: Path, value: Json, flushed: bool = True) -> None:
    """Writes a small JSON file."""
    write_text(path, strict_json.dumps(value, indent=1) + "\n", flushed)


def flush(path: Path) -> None:
    """Flushes a file or folder to disk."""
    handle = os.open(path, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)
