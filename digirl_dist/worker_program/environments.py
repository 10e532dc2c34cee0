"""Environments on a worker machine, stepped by the host over this program's stdin and stdout.

A frame is its length, 4 bytes with the highest first, and a MessagePack mapping; one of no bytes is a ping. The program
ends, and closes its environments, when its stdin does, or when the host is silent for ``_ORPHAN_S``: a server notices
only after hours that a host has lost its power.
"""

from __future__ import annotations

import os
import pickle
import queue
import select
import sys
import threading
import time
import traceback
from collections.abc import Callable, Sequence
from typing import Any

import gymnasium
import msgspec
import numpy as np

from digirl_dist.rollout.emulator_process import guarded

_CLOSE_LIMIT_S = 5.0
_ORPHAN_S = 120.0
PING = bytes(4)
PING_S = 15.0
"""Time between the host's pings."""
MOST_BYTES = 1 << 28
"""Longest frame."""

Native = Any
"""An observation or an action: numbers, strings and arrays, or tuples and mappings of these."""


def plain(value: Native) -> Any:
    """Returns what MessagePack can write. Raises TypeError for what is not made of numbers, texts and arrays."""
    match value:
        case np.ndarray() | np.generic():
            array = np.asarray(value)
            if array.dtype.kind not in "biufU":
                raise TypeError(f"an array of {array.dtype} cannot travel")
            if array.dtype.kind == "U":
                return {"t": array.tolist()}
            return {"a": [array.dtype.str, list(array.shape), np.ascontiguousarray(array).tobytes()]}
        case dict():
            return {"d": [[_key(key), plain(entry)] for key, entry in value.items()]}
        case list() | tuple():
            return {"l": [plain(entry) for entry in value]}
        case int() if not -(2**63) <= value < 2**64:
            raise TypeError("an integer of more than 64 bits cannot travel")
        case None | bool() | int() | float() | str():
            return value
    raise TypeError(f"{type(value).__name__} cannot travel")


def native(value: Any) -> Native:
    """Returns the inverse of ``plain``, but that lists become tuples. Raises ValueError for anything else."""
    match value:
        case {"a": [str() as kind, list() as shape, bytes() as data]} if np.dtype(kind).kind in "biuf":
            return np.frombuffer(data, np.dtype(kind)).reshape(shape).copy()[()]  # of no dimensions: a scalar
        case {"d": list() as entries}:
            return {_key(key): native(entry) for key, entry in entries}
        case {"l": list() as entries}:
            return tuple(native(entry) for entry in entries)
        case {"t": str() as text}:
            return text
        case {"t": list() as texts}:
            return np.array(texts, np.str_)
        case None | bool() | int() | float() | str():
            return value
    raise ValueError("a frame holds something else than numbers, texts and arrays")


def _key(key: Any) -> str | int:
    return key if isinstance(key, int) else str(key)


Reset = Sequence[Any]
"""Seed and options of a reset, of which either may be None; empty: none of either."""


class Hosted:
    """The environments of this process, by their number in it."""

    def __init__(self, make: Callable[[], gymnasium.Env[Any, Any]]) -> None:
        self._make = make
        self._envs: list[gymnasium.Env[Any, Any]] = []

    def add(self, asked: Sequence[Reset]) -> list[Any]:
        """Makes more of them; their first observations and infos."""
        made = [self._make() for _ in asked]
        self._envs += made
        return [_first(env, *each) for env, each in zip(made, asked, strict=True)]

    def reset(self, asked: Sequence[Reset | None]) -> list[Any]:
        """Begins episodes; None: that environment goes on with its own."""
        pairs = zip(self._envs, asked, strict=True)
        return [None if each is None else _first(env, *each) for env, each in pairs]

    def step(self, actions: Sequence[Any]) -> list[Any]:
        """Steps all; one whose episode ended is reset, and tells the last observation and info as well."""
        return [_step(env, native(action)) for env, action in zip(self._envs, actions, strict=True)]

    def close(self) -> None:
        for env in self._envs:
            env.close()


def _first(env: gymnasium.Env[Any, Any], seed: int | None = None, options: Any = None) -> Any:
    observation, info = env.reset(seed=seed, options=native(options))
    return [plain(observation), _told(info)]


def _step(env: gymnasium.Env[Any, Any], action: Native) -> Any:
    observation, reward, terminated, truncated, info = env.step(action)
    final = None
    if terminated or truncated:
        final = [plain(observation), _told(info)]
        observation, info = env.reset()
    return [plain(observation), float(reward), bool(terminated), bool(truncated), final, _told(info)]


def _told(info: dict[str, Any]) -> Any:
    """What of an info can travel."""
    found = {}
    for key, value in info.items():
        try:
            found[str(key)] = plain(value)
        except TypeError:
            pass
    return found


def write_frame(content: Any) -> bytes:
    data = msgspec.msgpack.encode(content)
    return len(data).to_bytes(4, "big") + data


def _read_frame() -> Any:
    while (head := _read_exactly(4)) == PING:
        pass
    return msgspec.msgpack.decode(_read_exactly(int.from_bytes(head, "big"))) if len(head) == 4 else None


def _read_exactly(size: int) -> bytes:
    """Returns so many bytes of stdin, fewer at its end, or once nothing has come for too long."""
    data = bytearray()
    while len(data) < size and select.select([0], [], [], _ORPHAN_S)[0] and (part := os.read(0, size - len(data))):
        data += part
    return bytes(data)


def main() -> int:
    """Serves in a child process. When that has ended, however it did, its own children are ended too."""
    return guarded(_serve, None)


def _serve() -> None:
    answers = os.fdopen(os.dup(1), "wb", buffering=0)
    os.dup2(2, 1)  # what environments print must not come between frames
    requests: queue.SimpleQueue[Any] = queue.SimpleQueue()
    threading.Thread(target=_read_requests, args=[requests], daemon=True).start()
    hosted, failure = None, ""
    try:
        hosted = pickle.loads(requests.get()["hosted"])()  # from the host, as everything that is packed
    except Exception:
        failure = traceback.format_exc(limit=-4)
    while (request := requests.get()) is not None:
        try:
            answer = {"error": failure} if failure else {"results": getattr(hosted, request["do"])(request["with"])}
        except Exception:
            answer = {"error": traceback.format_exc(limit=-4)}
        answers.write(write_frame(answer))
    if hosted is not None:
        hosted.close()


def _read_requests(requests: queue.SimpleQueue[Any]) -> None:
    """Reads to the end of stdin. An environment that hangs then is not waited for."""
    while (request := _read_frame()) is not None:
        requests.put(request)
    requests.put(None)
    time.sleep(_CLOSE_LIMIT_S)
    os._exit(1)


if __name__ == "__main__":
    sys.exit(main())
