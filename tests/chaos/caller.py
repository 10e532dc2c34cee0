"""Somebody's trainer, which asks for groups by key and takes each once, however often it is killed.

``python -m chaos.caller FOLDER http SOCKET TOKEN_FILE`` asks ``digirl-dist serve``, ``… FOLDER fleet key=value …`` a
fleet of its own. It begins no new group once FOLDER has a file ``stop``.
"""

from __future__ import annotations

import queue
import sys
import time
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any, NamedTuple, Protocol

import httpx

from chaos.notebook import fleet_of
from digirl_dist.collect.leases import Lost
from digirl_dist.storage import json_lines

GROUP = 4
_AHEAD = 3
_AGAIN_S = 0.2
_WAIT_S = 2


class Delivered(NamedTuple):
    """A rollout that is over. ``episode`` is its id, None if it was lost."""

    key: str
    episode: str | None
    seed: int
    cursor: int = 0


class Door(Protocol):
    """Where rollouts are asked for."""

    def ask(self, group: int) -> None: ...

    def ended(self) -> Iterable[Delivered]:
        """Returns those that were over since the last call, waiting for a moment."""

    def acknowledge(self, keys: Sequence[str]) -> None: ...


class HttpDoor:
    """A server that may be gone for a while."""

    def __init__(self, path: str, token: Path) -> None:
        self._token = token
        self._http = httpx.Client(transport=httpx.HTTPTransport(uds=path), base_url="http://localhost", timeout=30.0)
        self._cursor = 0

    def ask(self, group: int) -> None:
        self._exchange("POST", "/rollouts", json={"key": f"g/{group}", "task": "rehearsal", "n": GROUP})

    def ended(self) -> Iterable[Delivered]:
        told = self._exchange("GET", f"/rollouts?after={self._cursor}&wait_s={_WAIT_S}")
        self._cursor = told["cursor"]
        return [Delivered(one["key"], one.get("episode_id"), one["seed"], one["cursor"]) for one in told["rollouts"]]

    def acknowledge(self, keys: Sequence[str]) -> None:
        self._exchange("POST", "/acknowledge", json={"keys": list(keys)})

    def _exchange(self, method: str, path: str, **how: Any) -> Any:
        """Asks until there is an answer. What the server refuses for good is a defect."""
        while True:
            try:
                secret = {"Authorization": f"Bearer {self._token.read_text()}"}
                answer = self._http.request(method, path, headers=secret, **how)
                if answer.status_code < 500:
                    answer.raise_for_status()
                    return answer.json()
            except (httpx.TransportError, FileNotFoundError):
                pass
            time.sleep(_AGAIN_S)


class FleetDoor:
    """A fleet of this process, in which a function acts."""

    def __init__(self, words: Sequence[str]) -> None:
        self._fleet = fleet_of(words)
        self._fleet.update(lambda seen: [0 for _ in seen])
        self._over: queue.SimpleQueue[Any] = queue.SimpleQueue()

    def ask(self, group: int) -> None:
        for member in range(GROUP):
            asked = self._fleet.submit("rehearsal", group=f"g/{group}", key=f"g/{group}/{member}")
            asked.add_done_callback(self._over.put)

    def ended(self) -> Iterator[Delivered]:
        try:
            rollout = self._over.get(timeout=_WAIT_S)
        except queue.Empty:
            return
        found = rollout.result()
        yield Delivered(rollout.key, None if isinstance(found, Lost) else found.episode_id, rollout.ticket.seed)

    def acknowledge(self, keys: Sequence[str]) -> None:
        self._fleet.acknowledge(keys)


class Notes:
    """What the trainer remembers beyond its end: the groups that it asked for, and those that it has."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        lines = json_lines.read(folder / "notes.jsonl")
        self.asked = [line["asked"] for line in lines if "asked" in line]
        self.has = {line["has"] for line in lines if "has" in line}

    def write(self, **line: Any) -> None:
        json_lines.append_object(self._folder / "notes.jsonl", line)

    def saw(self, one: Delivered) -> None:
        json_lines.append_object(self._folder / "seen.jsonl", one._asdict())


def trade(door: Door, folder: Path) -> None:
    """Takes groups until it is told to stop, and then those that it asked for before."""
    notes = Notes(folder)
    forming: dict[int, dict[str, str]] = {group: {} for group in notes.asked if group not in notes.has}
    for group in forming:
        door.ask(group)
    door.acknowledge([key for group in notes.has for key in _keys(group)])  # it may have been killed before that
    following = max(notes.asked, default=-1) + 1
    while True:
        while len(forming) < _AHEAD and not (folder / "stop").exists():
            notes.write(asked=following)
            forming[following] = {}
            door.ask(following)
            following += 1
        if not forming:
            return
        for one in door.ended():
            group = int(one.key.split("/")[1])
            if group not in forming:  # of another life, and acknowledged meanwhile
                continue
            notes.saw(one)
            if one.episode is None:
                door.ask(group)
                continue
            forming[group][one.key] = one.episode
            if len(forming[group]) == GROUP:
                notes.write(has=group, episodes=forming.pop(group))
                door.acknowledge(_keys(group))


def _keys(group: int) -> list[str]:
    return [f"g/{group}/{member}" for member in range(GROUP)]


def main(words: Sequence[str]) -> int:
    folder, kind, *more = words
    door: Door = HttpDoor(more[0], Path(more[1])) if kind == "http" else FleetDoor(more)
    trade(door, Path(folder))
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
