"""Verdicts that were given later: ``verdicts/NAME.jsonl`` of a run folder, beside the episodes, which stay as they are.

The first line says who judged; each other line is an episode's verdict.
"""

from __future__ import annotations

import re
import threading
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path
from typing import Annotated

import msgspec

from digirl_dist.errors import RunFolderError, SettingsError
from digirl_dist.plain_text import nearest
from digirl_dist.storage import file_system, json_lines, strict_json
from digirl_dist.storage.json_lines import JsonLines
from digirl_dist.types import Closeable, Json

FOLDER = "verdicts"
_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9_-]{0,63}", re.ASCII)
_LONGEST = 500
"""Characters kept of what a judge said."""


class LaterVerdict(msgspec.Struct, frozen=True):
    """The verdict on the episode of a key: how far it reached its goal, from 0 to 1."""

    key: str
    episode_id: str
    score: Annotated[float, msgspec.Meta(ge=0, le=1)]
    said: str = ""


def read(folder: Path, name: str) -> dict[str, LaterVerdict]:
    """Returns the verdicts of that name by the episodes' keys. Raises RunFolderError where there are none."""
    path = _path(folder, name)
    if not path.exists():
        known = sorted(each.stem for each in path.parent.glob("*.jsonl"))
        remedy = nearest(name, known) if known else f"`digirl-dist regrade {folder} --success judge` gives some"
        raise RunFolderError(f"{folder} has no verdicts {name!r}; {remedy}")
    found = {}
    for line in JsonLines(path).news():
        with suppress(ValueError):  # the first one
            given = msgspec.convert(line, LaterVerdict)
            found[given.key] = given
    return found


class VerdictFile(Closeable):
    """Adds verdicts to a file, of which this process is the only writer. Safe to use from any thread."""

    def __init__(self, folder: Path, name: str, judge: Mapping[str, Json]) -> None:
        """``judge`` says who judges.

        Raises SettingsError for a file of another judge, RunFolderError for one that is in use or cannot be written.
        """
        self.path = _path(folder, name)
        self._lock = threading.Lock()
        try:
            self.path.parent.mkdir(exist_ok=True)
            self._file = json_lines.opened_to_append(self.path)
            if not file_system.lock(self._file):
                raise RunFolderError(f"{self.path} is being written by another process; wait for it, or give --name")
        except OSError as error:
            raise RunFolderError(f"{self.path} cannot be written: {error.strerror}; move it away") from error
        first = next(JsonLines(self.path).news(), None)
        if first is None:
            self._write({"judge": judge})
        elif first.get("judge") != judge:
            raise SettingsError(
                f"{self.path} has the verdicts of another judge, or of this one before it was changed: choose another "
                "--name, or move the file away"
            )
        self.known = read(folder, name)
        """The verdicts that were there, by key."""

    def add(self, verdict: LaterVerdict) -> None:
        """Raises RunFolderError if it cannot be written."""
        self._write({**msgspec.structs.asdict(verdict), "said": verdict.said[:_LONGEST]})

    def close(self) -> None:
        self._file.close()

    def _write(self, content: Mapping[str, Json]) -> None:
        line = strict_json.dumps(dict(content)).encode() + b"\n"
        try:
            with self._lock:
                json_lines.append_to(self._file, line)
        except OSError as error:
            raise RunFolderError(
                f"{self.path} cannot be written: {file_system.in_words(error, self.path)}; the same command continues"
            ) from error


def _path(folder: Path, name: str) -> Path:
    if not _NAME.fullmatch(name):
        raise SettingsError(f"{name!r:.80} is no name of verdicts: use letters, digits, - and _")
    return folder / FOLDER / f"{name}.jsonl"
