"""Files of one JSON object per line, which may still be growing."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from digirl_dist.types import Json


def read(path: Path, newest_bytes: int | None = None) -> list[dict[str, Json]]:
    """Returns the objects of the file, or of its newest bytes; skips lines that are not complete JSON objects."""
    return JsonLines(path).news(newest_bytes)


class JsonLines:
    """Reads a growing file bit by bit."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._read = 0

    def news(self, newest_bytes: int | None = None) -> list[dict[str, Json]]:
        """Returns the objects that were added since the last call. A file that shrank is read from its start."""
        if not self._path.exists():
            return []
        with self._path.open("rb") as file:
            size = file.seek(0, 2)
            start = self._read if self._read <= size else 0
            file.seek(start if newest_bytes is None else max(start, size - newest_bytes))
            lines = file.read().splitlines(keepends=True)
            self._read = size - (len(lines[-1]) if lines and not lines[-1].endswith(b"\n") else 0)
        parsed = [_parsed(line) for line in lines]
        return [line for line in parsed if isinstance(line, dict)]


def _parsed(line: bytes) -> Any:
    try:
        return json.loads(line)
    except (ValueError, RecursionError):
        return None
