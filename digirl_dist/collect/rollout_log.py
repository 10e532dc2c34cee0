"""``rollouts.jsonl``: which ticket each key of a caller has, so that no process runs one twice."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import asdict
from pathlib import Path

import msgspec

from digirl_dist.errors import RunFolderError
from digirl_dist.storage.json_lines import DurableMap
from digirl_dist.tasks import Ticket


class RolloutLog:
    """Keys and their tickets, in a file with one line for each key that was asked for and each that is forgotten."""

    def __init__(self, path: Path) -> None:
        """Raises RunFolderError if the file cannot be read, or is damaged."""
        self._kept = DurableMap(path)
        try:
            self._tickets = msgspec.convert(self._kept.values, dict[str, Ticket])
        except msgspec.ValidationError as error:
            raise RunFolderError(f"{path} is damaged: {error}; restore it, or move it away") from error

    def tickets(self) -> dict[str, Ticket]:
        return dict(self._tickets)

    def ticket(self, key: str) -> Ticket | None:
        return self._tickets.get(key)

    def add(self, tickets: Mapping[str, Ticket]) -> None:
        """Returns once they are durable. Raises as ``DurableMap.write``."""
        self._kept.write({key: asdict(ticket) for key, ticket in tickets.items()})
        self._tickets.update(tickets)

    def forget(self, keys: Iterable[str]) -> None:
        """Raises as ``DurableMap.write``."""
        known = [key for key in keys if key in self._tickets]
        self._kept.write(dict.fromkeys(known))
        for key in known:
            self._tickets.pop(key, None)
