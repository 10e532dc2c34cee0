"""Files that appear whole or not at all, also across a power cut."""

from __future__ import annotations

import json
import os
from pathlib import Path

from digirl_dist.tasks import Json


def replace_durably(part: Path, path: Path) -> None:
    """Rename ``part`` to ``path``, flushing first the content and then the rename to disk."""
    flush(part)
    os.replace(part, path)
    flush(path.parent)


def write_text(path: Path, text: str) -> None:
    """Write a small text file durably."""
    part = path.with_name(path.name + ".part")
    part.write_text(text)
    replace_durably(part, path)


def write_json(path: Path, value: Json) -> None:
    """Write a small JSON file durably."""
    write_text(path, json.dumps(value, indent=1) + "\n")


def flush(path: Path) -> None:
    """Flush a file or folder to disk."""
    handle = os.open(path, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)
