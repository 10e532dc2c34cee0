"""The lines of a growing file, as JSON for pages: each is read once, and sent once to each page."""

from __future__ import annotations

import json
import threading
from collections import deque
from collections.abc import Callable, Mapping
from pathlib import Path

from digirl_dist.storage.file_system import found_at
from digirl_dist.storage.json_lines import JsonLines
from digirl_dist.types import Json

_MOST_READ = 1 << 27
"""Of a file that somebody made long: in bytes of memory, which its lines take one by one."""
Chosen = Callable[[dict[str, Json]], Mapping[str, Json] | None]
"""Returns what pages get of a line; None for a line that they do not get."""


class Followed:
    """Keeps the newest ``most_bytes`` of what pages get. Safe to use from any thread."""

    def __init__(self, path: Path, chosen: Chosen, most_bytes: int) -> None:
        self._path = path
        self._chosen = chosen
        self._most_bytes = most_bytes
        self._lock = threading.Lock()
        self._file = 0
        """The inode: a file that was written anew is another one."""
        self._begin()

    def _begin(self) -> None:
        self._lines = JsonLines(self._path)
        self._texts: deque[str] = deque()
        self._bytes = self._dropped = 0

    def news(self, place: str) -> str:
        """Returns, as JSON, the lines after ``place``, which an earlier answer called ``next``.

        They are ``fresh`` if they replace all earlier ones, as for a page that has none, and ``cut`` if the file has
        older ones that no page gets. Raises RunFolderError.
        """
        with self._lock:
            self._follow()
            file, _, known = place.partition(".")
            first = self._dropped
            if is_next := file == str(self._file) and known.isdecimal() and self._dropped <= int(known) <= self._end:
                first = int(known)
            lines = ",".join(list(self._texts)[first - self._dropped :])
            begun = f'"fresh":{json.dumps(not is_next)},"cut":{json.dumps(self._dropped > 0)}'
            return f'{{{begun},"next":"{self._file}.{self._end}","lines":[{lines}]}}'

    @property
    def _end(self) -> int:
        return self._dropped + len(self._texts)

    def _follow(self) -> None:
        found = found_at(self._path)
        size, file = (0, 0) if found is None else (found.st_size, found.st_ino)
        if file != self._file or size < self._lines.place:
            self._begin()
            self._file = file
            self._lines.skip_to_newest(_MOST_READ)
            self._dropped = int(self._lines.place > 0)  # what is not read counts as one
        for line in self._lines.news(size):
            if (chosen := self._chosen(line)) is not None:
                self._add(json.dumps(chosen, separators=(",", ":")))

    def _add(self, text: str) -> None:
        self._texts.append(text)
        self._bytes += len(text)
        while self._bytes > self._most_bytes:
            self._bytes -= len(self._texts.popleft())
            self._dropped += 1
