"""Files of one JSON object per line, which may still be growing."""

from __future__ import annotations

import json
import os
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from io import FileIO
from pathlib import Path
from typing import Any, BinaryIO

from digirl_dist.errors import RunFolderError, SettingsError
from digirl_dist.settings import regular_file
from digirl_dist.storage import atomic_files, file_system, strict_json
from digirl_dist.types import Json

_BLOCK = 1 << 12
_LONGEST = 1 << 22
"""Bytes of a line: longer ones, which a stranger's file may have, are skipped."""
_MOST_LINES = 2_000_000
"""Read at once."""
_NEWEST = 1 << 25
_MOST_MEMORY = 64 << 20
_OF_A_VALUE, _OF_AN_OBJECT = 64, 320
"""Bytes of memory, however short they are."""
_BLANKS = " \t\r\n"
MOST_KEYS = 500_000
LONGEST_LINE = 1 << 20
"""In bytes, the key included."""
_SUPERSEDED = 100_000
"""Lines that are left in the file before it is written anew, if most of it is such."""
_DECODER = json.JSONDecoder()


def read(path: Path, newest_bytes: int = _NEWEST) -> list[dict[str, Json]]:
    """Returns the objects in the file's newest bytes, or as many of the newest as memory is meant for; skips lines that
    are not complete JSON objects. Raises RunFolderError for what is no file that can be read."""
    lines = JsonLines(path)
    lines.skip_to(lines.size() - newest_bytes)
    lines.skip_to_newest(_MOST_MEMORY)
    return list(lines.news())


@contextmanager
def opened(path: Path) -> Iterator[BinaryIO]:
    """Yields a file of lines to be read. Raises RunFolderError for what is no file that can be read."""
    try:
        with regular_file.opened(path) as file:
            yield file
    except OSError as error:
        why = regular_file.defect(error)
        raise RunFolderError(f"{path} cannot be read: {why}; restore it, or move it away") from error


def append_object(path: Path, content: Mapping[str, Json]) -> None:
    """Appends ``content`` as one line. Raises OSError."""
    append(path, strict_json.dumps(dict(content)).encode() + b"\n")


def append(path: Path, lines: bytes, flushed: bool = False) -> None:
    """Appends whole lines, all of them or none. Raises OSError."""
    with opened_to_append(path) as file:
        append_to(file, lines, flushed)


def append_to(file: FileIO, lines: bytes, flushed: bool = False) -> None:
    """Appends whole lines to an open file, all of them or none. Raises OSError."""
    end = file.seek(0, os.SEEK_END)
    rest = memoryview(lines)
    try:
        while rest:
            rest = rest[file.write(rest) :]
        if flushed:
            os.fsync(file.fileno())
    except OSError:
        file.truncate(end)
        raise


def opened_to_append(path: Path) -> FileIO:
    """Opens a file of lines, and cuts off what a crash or a full disk left of one: the next would become part of it.

    Raises OSError.
    """
    file = atomic_files.opened_to_append(path)
    size = file.seek(0, os.SEEK_END)
    if (whole := _end_of_whole_lines(file, size)) < size:
        file.truncate(whole)
    return file


def _end_of_whole_lines(file: FileIO, size: int) -> int:
    at = size
    while at > 0:
        start = max(0, at - _BLOCK)
        found = os.pread(file.fileno(), at - start, start).rfind(b"\n")
        if found >= 0:
            return start + found + 1
        at = start
    return 0


class JsonLines:
    """Reads a growing file bit by bit."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self.place = 0
        """How many bytes have been read."""

    def size(self) -> int:
        found = file_system.found_at(self._path)
        return 0 if found is None else found.st_size

    def skip_to(self, place: int) -> None:
        self.place = max(self.place, place)

    def skip_to_newest(self, memory: int) -> None:
        """Skips all but the newest lines whose values may take so many bytes of memory. Raises RunFolderError."""
        first, block = self.size(), memory >> 10
        while memory >= 0 and first > self.place:
            at, first = first, max(self.place, first - block)
            with opened(self._path) as file:
                file.seek(first)
                memory -= cost(file.read(at - first))
        self.place = first if memory >= 0 else at

    def news(self, until: int | None = None) -> Iterator[dict[str, Json]]:
        """Yields the objects up to byte ``until``, or to the end, that were not yielded before, line by line.

        Raises RunFolderError.
        """
        end = self.size() if until is None else until
        if end <= self.place:
            return
        with opened(self._path) as file:
            file.seek(self.place)
            whole, count = True, 0
            while self.place < end and (line := file.readline(_LONGEST)):
                ends = line.endswith(b"\n")
                if not ends and len(line) < _LONGEST:  # it is being written
                    return
                self.place += len(line)
                count += 1
                if count > _MOST_LINES:
                    raise RunFolderError(f"{self._path} cannot be read: it has more than {_MOST_LINES:,} new lines")
                found = parsed(line) if whole and ends else None
                whole = ends
                if isinstance(found, dict):
                    yield found


def cost(lines: bytes) -> int:
    """Returns how many bytes their values may take in memory."""
    return len(lines) + _OF_A_VALUE * (lines.count(b",") + lines.count(b"[")) + _OF_AN_OBJECT * lines.count(b"{")


def parsed(line: bytes) -> Any:
    """Returns its value; None if it is not JSON. ``json.loads`` takes five times as long for a short line."""
    try:
        text = line.decode("utf-8", "surrogatepass").strip(_BLANKS)
        value, end = _DECODER.raw_decode(text)
    except (ValueError, RecursionError):
        return None
    return value if end == len(text) else None


class DurableMap:
    """Values that survive this process and, as soon as ``write`` returns, a power cut.

    A process that ends while it writes leaves a change whole or not at all, and those of one call in their order.
    """

    def __init__(self, path: Path) -> None:
        """Raises RunFolderError if the file cannot be read, or is damaged."""
        self.path = path
        self.values: dict[str, Json] = {}
        self._lines = 0
        if os.path.lexists(path):
            with opened(path) as file:
                self._read(file)
            self._compact()

    def write(self, changes: Mapping[str, Json], limited: bool = True) -> None:
        """Sets these values; a key whose value is None goes. Returns once that is durable: all of it, or an error.

        Raises SettingsError for what is too large, if ``limited`` also for too many keys, and RunFolderError if the
        file cannot be written.
        """
        if not changes:
            return
        lines = [_line(key, value) for key, value in changes.items()]
        if (longest := max(map(len, lines))) > LONGEST_LINE:
            raise SettingsError(f"a key with its task takes {longest:,} bytes, more than {LONGEST_LINE:,}: shorten it")
        if limited and len(self.values) + sum(key not in self.values for key in changes) > MOST_KEYS:
            raise SettingsError(f"{self.path} has {len(self.values):,} keys: acknowledge those that you are done with")
        try:
            append(self.path, b"".join(lines), flushed=True)
        except OSError as error:
            raise RunFolderError(
                f"{self.path} cannot be written: {error.strerror}; "
                "nothing was changed; make room or repair it, and ask again"
            ) from error
        for key, value in changes.items():
            self._apply(key, value)
        if self._lines > 2 * len(self.values) + _SUPERSEDED:
            self._compact()

    def _read(self, file: BinaryIO) -> None:
        """Reads all lines but the last, if that was cut: it was never confirmed to anybody."""
        while (line := file.readline(2 * LONGEST_LINE)).endswith(b"\n"):
            match parsed(line):
                case {"key": str(key), "value": value}:
                    self._apply(key, value)
                case _:
                    raise self._damaged(line)
        if file.read(1):
            raise self._damaged(line)

    def _damaged(self, line: bytes) -> RunFolderError:
        return RunFolderError(f"{self.path} is damaged: {line[:80]!r}; restore it, or move it away")

    def _apply(self, key: str, value: Json) -> None:
        self._lines += 1
        self.values.pop(key, None)  # so that the order is that of the changes
        if value is not None:
            self.values[key] = value

    def _compact(self) -> None:
        if self._lines == len(self.values):
            return
        try:
            atomic_files.write_bytes(self.path, b"".join(_line(key, value) for key, value in self.values.items()))
        except OSError:  # the longer file says the same
            return
        self._lines = len(self.values)


def _line(key: str, value: Json) -> bytes:
    return strict_json.dumps({"key": key, "value": value}).encode() + b"\n"
