"""``serve.jsonl``: what was asked for over HTTP, and in which order it was over. It outlives the server."""

from __future__ import annotations

import threading
from collections.abc import Iterable, Mapping
from itertools import islice
from pathlib import Path
from typing import Literal

import msgspec

from digirl_dist.errors import RunFolderError
from digirl_dist.storage.json_lines import DurableMap
from digirl_dist.tasks import Task
from digirl_dist.types import Json, Natural

State = Literal["running", "landed", "infrastructure", "environment", "agent", "cancelled"]
"""Of a rollout: under way, landed, or what it was lost to."""
_NEWEST = ""
"""The key, which no rollout has, of the number that was given last."""


class Entry(msgspec.Struct, frozen=True, omit_defaults=True):
    """A rollout that was asked for."""

    task: Task
    seed: int
    deadline_s: float | None = None
    state: State = "running"
    number: Natural = 0
    """Its place in the order in which rollouts were over; 0: it is not."""
    about: dict[str, Json] = {}
    """Figures of its episode, or the reason why there is none."""


class Journal:
    """The rollouts by key, and those that are over by number. Safe to use from any thread.

    A number is given once, and durable before anybody sees it: whoever has seen all up to one misses none by asking for
    those after it, whatever was restarted meanwhile. Rollouts that run already, or are over, are noted however many
    there are: who asks for new ones is refused before they begin.
    """

    def __init__(self, path: Path) -> None:
        """Raises RunFolderError if the file cannot be read, or is damaged."""
        self._kept = DurableMap(path)
        self._writing = threading.Lock()
        """Held while the disk takes its time, for which no reader waits."""
        self._lock = threading.Lock()
        try:
            self.newest: int = msgspec.convert(self._kept.values.get(_NEWEST, 0), Natural)
            found = {key: value for key, value in self._kept.values.items() if key != _NEWEST}
            self._entries = msgspec.convert(found, dict[str, Entry])
        except msgspec.ValidationError as error:
            raise RunFolderError(f"{path} is damaged: {error}; restore it, or move it away") from error
        self._over = dict(sorted((entry.number, key) for key, entry in self._entries.items() if entry.number))
        """Number -> key, in order."""
        self.newest = max([self.newest, *self._over])

    def __len__(self) -> int:
        return len(self._entries)

    def get(self, key: str) -> Entry | None:
        return self._entries.get(key)

    def running(self) -> dict[str, Entry]:
        """Returns the rollouts that are not over."""
        with self._lock:
            return {key: entry for key, entry in self._entries.items() if not entry.number}

    def ask(self, entries: Mapping[str, Entry]) -> None:
        """Adds rollouts, or has lost ones run again. Raises as ``DurableMap.write``."""
        with self._writing:
            self._write(entries)

    def end(self, entries: Mapping[str, Entry]) -> None:
        """Gives rollouts, which are over, their numbers. Raises as ``DurableMap.write``."""
        with self._writing:
            kept = {key: entry for key, entry in entries.items() if key in self._entries}
            numbered = {
                key: msgspec.structs.replace(entry, number=number)
                for number, (key, entry) in enumerate(kept.items(), self.newest + 1)
            }
            if numbered:
                self._write(numbered, self.newest + len(numbered))

    def forget(self, keys: Iterable[str]) -> None:
        """Raises as ``DurableMap.write``."""
        with self._writing:
            known = list(dict.fromkeys(key for key in keys if key in self._entries))
            self._kept.write(dict.fromkeys(known), limited=False)
            with self._lock:
                for key in known:
                    self._over.pop(self._entries.pop(key).number, None)

    def after(self, number: int, most: int) -> dict[str, Entry]:
        """Returns those that were over after the one of this number, in order, but at most so many."""
        with self._lock:
            first = max(number + 1, next(iter(self._over), self.newest + 1))
            there = (self._over[each] for each in range(first, self.newest + 1) if each in self._over)
            return {key: self._entries[key] for key in islice(there, most)}

    def _write(self, entries: Mapping[str, Entry], newest: int | None = None) -> None:
        """The number comes first: cut anywhere, the file never has one that it would give again."""
        number: dict[str, Json] = {} if newest is None else {_NEWEST: newest}
        self._kept.write(number | {key: msgspec.to_builtins(entry) for key, entry in entries.items()}, limited=False)
        with self._lock:
            self.newest = self.newest if newest is None else newest
            for key, entry in entries.items():
                self._over.pop(self._entries.get(key, entry).number, None)
                self._entries[key] = entry  # at once: whoever looks for it does not wait for the lock
                if entry.number:
                    self._over[entry.number] = key
