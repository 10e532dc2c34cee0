"""``events.jsonl``: one line per thing that happened to a worker, a slot or a transfer."""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from digirl_dist.errors import RunFolderError
from digirl_dist.plain_text import without_secrets_in
from digirl_dist.storage import json_lines, strict_json
from digirl_dist.types import Json

Listener = Callable[[str, dict[str, Json]], None]


class Events:
    """Appends events to a file and passes them to listeners, such as a progress bar. Safe to use from any thread."""

    def __init__(self, path: Path, listeners: tuple[Listener, ...] = ()) -> None:
        """Raises RunFolderError if the file cannot be written."""
        self._path = path
        try:
            path.parent.mkdir(parents=True, exist_ok=True)
            self._file = json_lines.opened_to_append(path)
        except OSError as error:
            raise RunFolderError(f"{path} cannot be written: {error.strerror}; move it away") from error
        self._unwritten = bytearray()
        self._listeners = listeners
        self._lock = threading.Lock()

    def emit(self, kind: str, **content: Json) -> None:
        """Appends one event; ``content`` says what, where and why. Adds the time, and hides secrets."""
        content = without_secrets_in(content)
        with self._lock:
            line = strict_json.dumps({"time": round(time.time(), 3), "event": kind, **content})
            self._unwritten += line.encode() + b"\n"
            self._write()
            for listener in self._listeners:
                listener(kind, content)

    @contextmanager
    def heard_by(self, listener: Listener) -> Iterator[None]:
        """Passes events to one more listener until the block ends."""
        with self._lock:
            self._listeners = (*self._listeners, listener)
        try:
            yield
        finally:
            with self._lock:
                self._listeners = tuple(each for each in self._listeners if each != listener)

    def close(self) -> None:
        with self._lock:
            self._write()
            self._file.close()

    def _write(self) -> None:
        """Writes all pending lines, to a new file once somebody has deleted the old one.

        Those that a full disk refuses stay pending: an event must not end its run.
        """
        with suppress(OSError):
            if not self._file.closed and not os.fstat(self._file.fileno()).st_nlink:
                deleted, self._file = self._file, json_lines.opened_to_append(self._path)
                deleted.close()
            while self._unwritten and not self._file.closed:
                del self._unwritten[: self._file.write(self._unwritten)]
