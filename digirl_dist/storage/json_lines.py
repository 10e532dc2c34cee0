"""Files of one JSON object per line, which may still be growing."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from digirl_dist.settings import regular_file
from digirl_dist.types import Json

_LONGEST = 1 << 26
"""Bytes of a line: longer ones, which a stranger's file may have, are skipped."""


def read(path: Path, newest_bytes: int | None = None) -> list[dict[str, Json]]:
    """Returns the objects of the file, or of its newest bytes; skips lines that are not complete JSON objects."""
    lines = JsonLines(path)
    if newest_bytes is not None:
        lines.skip_to(lines.size() - newest_bytes)
    return list(lines.news(lines.size()))


class JsonLines:
    """Reads a growing file bit by bit."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._read = 0

    def size(self) -> int:
        try:
            return self._path.stat().st_size
        except OSError:  # it is not there yet, or not any more
            return 0

    @property
    def place(self) -> int:
        """How many bytes have been read."""
        return self._read

    def skip_to(self, place: int) -> None:
        self._read = max(self._read, place)

    def news(self, until: int) -> Iterator[dict[str, Json]]:
        """Yields the objects up to byte ``until`` that were not yielded before, line by line. Raises OSError."""
        if until <= self._read:
            return
        with regular_file.opened(self._path) as file:
            file.seek(self._read)
            whole = True
            while self._read < until and (line := file.readline(_LONGEST)):
                ends = line.endswith(b"\n")
                if not ends and len(line) < _LONGEST:  # it is being written
                    return
                self._read += len(line)
                parsed = _parsed(line) if whole and ends else None
                whole = ends
                if isinstance(parsed, dict):
                    yield parsed


def _parsed(line: bytes) -> Any:
    try:
        return json.loads(line)
    except (ValueError, RecursionError):
        return None
