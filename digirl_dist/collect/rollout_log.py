"""``rollouts.jsonl``: which ticket each key of a caller has, so that no process runs one twice."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from pathlib import Path

from digirl_dist.storage import atomic_files, json_lines, strict_json
from digirl_dist.tasks import Ticket
from digirl_dist.types import Json


class RolloutLog:
    """Keys and their tickets, in a file with one line for each key that was asked for and each that is forgotten."""

    def __init__(self, path: Path) -> None:
        """Raises RunFolderError if the file cannot be read."""
        self._path = path
        self._tickets: dict[str, Ticket] = {}
        lines = json_lines.JsonLines(path)
        for line in lines.news(lines.size()):
            if "ticket" in line:
                self._tickets[line["key"]] = Ticket.from_json(line["ticket"])
            else:
                self._tickets.pop(line["key"], None)
        if path.exists():
            atomic_files.write_bytes(path, _lines(_asked(self._tickets)))

    def tickets(self) -> dict[str, Ticket]:
        return dict(self._tickets)

    def ticket(self, key: str) -> Ticket | None:
        return self._tickets.get(key)

    def add(self, tickets: Mapping[str, Ticket]) -> None:
        """Returns once they are durable. Raises OSError."""
        if tickets:
            json_lines.append(self._path, _lines(_asked(tickets)), flushed=True)
            self._tickets.update(tickets)

    def forget(self, keys: Iterable[str]) -> None:
        """Raises OSError."""
        known = [key for key in keys if key in self._tickets]
        if known:
            json_lines.append(self._path, _lines({"key": key} for key in known), flushed=True)
            for key in known:
                del self._tickets[key]


def _asked(tickets: Mapping[str, Ticket]) -> Iterable[dict[str, Json]]:
    return ({"key": key, "ticket": ticket.to_json()} for key, ticket in tickets.items())


def _lines(objects: Iterable[dict[str, Json]]) -> bytes:
    return b"".join(strict_json.dumps(each).encode() + b"\n" for each in objects)
