"""Files that appear whole or not at all, also across a power cut.

With ``flushed=False`` a power cut may damage them: that is faster, for what can be found damaged and made again.
"""

from __future__ import annotations

import json
import os
from pathlib import Path

from digirl_dist.types import Json


def replace(part: Path, path: Path, flushed: bool = True) -> None:
    """Rename ``part`` to ``path``, flushing first the content and then the rename to disk."""
    if flushed:
        flush(part)
    os.replace(part, path)
    if flushed:
        flush(path.parent)


def write_text(path: Path, text: str, flushed: bool = True) -> None:
    """Write a small text file."""
    part = path.with_name(path.name + ".part")
    part.write_text(text)
    replace(part, path, flushed)


def write_json(path: Path, value: Json, flushed: bool = True) -> None:
    """Write a small JSON file."""
    write_text(path, json.dumps(value, indent=1) + "\n", flushed)


def flush(path: Path) -> None:
    """Flush a file or folder to disk."""
    handle = os.open(path, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)
