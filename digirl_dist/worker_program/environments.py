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
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack, suppress
from copy import deepcopy
from functools import partial
from typing import Any, BinaryIO

import gymnasium
import msgspec
import numpy as np

from digirl_dist.errors import EmulatorError, on_error
from digirl_dist.rollout.emulator_process import guarded
from digirl_dist.user_code.blame import described

_CLOSE_LIMIT_S = 5.0
_ORPHAN_S = 120.0
PING = bytes(4)
PING_S = 15.0
"""Time between the host's pings."""
MOST_BYTES = 1 << 28
"""Longest frame."""

_ARRAY = 1
"""MessagePack's type of an array: its type, its shape and its bytes."""


def encode(value: Any) -> bytes:
    """Returns a value as MessagePack. Raises TypeError for one that is not made of numbers, texts and arrays."""
    try:
        return _ENCODER.encode(value)
    except (OverflowError, UnicodeEncodeError, RecursionError) as error:
        raise TypeError(f"it cannot travel: {error}") from error


def _array(value: Any) -> msgspec.msgpack.Ext:
    array = np.asarray(value) if isinstance(value, np.ndarray | np.generic) else None
    if array is None or array.dtype.kind not in "biufU":
        raise TypeError(f"{type(value).__name__ if array is None else f'an array of {array.dtype}'} cannot travel")
    content = array.dtype.str, list(array.shape), np.ascontiguousarray(array).tobytes()
    return msgspec.msgpack.Ext(_ARRAY, msgspec.msgpack.encode(content))


def from_array(kind: int, data: memoryview) -> Any:
    """Inverts ``_array``. Raises ValueError or TypeError, and what else NumPy raises for unknown types."""
    name, shape, content = _ARRAYS.decode(data)
    array = np.frombuffer(content, np.dtype(name)).reshape(shape).copy()
    is_text = array.dtype.kind == "U" and np.frombuffer(content, np.uint32).max(initial=0) <= sys.maxunicode
    if kind != _ARRAY or not (is_text or array.dtype.kind in "biuf"):
        raise ValueError("a frame holds something else than numbers, texts and arrays")
    return array[()]  # a scalar of no dimensions


_ENCODER = msgspec.msgpack.Encoder(enc_hook=_array)
_ARRAYS = msgspec.msgpack.Decoder(tuple[str, list[int], bytes])


class Result(msgspec.Struct, array_like=True):
    """The result of one environment's reset or step. A reset has no reward."""

    observation: Any = None
    """Numbers, texts and arrays, or lists and mappings of these."""
    info: dict[Any, Any] = {}
    reward: float = 0.0
    terminated: bool = False
    truncated: bool = False
    final: tuple[Any, dict[Any, Any]] | None = None
    """The last observation and info of an episode after which the next one has begun."""
    raised: str = ""
    """The exception of the environment, as text with its place; then there is no other content."""


class EnvHost:
    """The Gymnasium environments of one process, by their number in it.

    Each request takes pairs of a number and an argument, and returns a result for each pair. What an environment raises
    is part of its result, so that the others' are not lost.
    """

    def __init__(self, make: Callable[[], Any], count: int = 0) -> None:
        """Raises EmulatorError for code that ends by ``sys.exit``, TypeError for what is no environment."""
        self._make = make
        self.envs: list[gymnasium.Env[Any, Any]] = []
        self._make_more(count)

    def answer(self, request: str, asked: Sequence[Any]) -> list[msgspec.Raw]:
        """Answers a request that came over a wire."""
        return [_travelling(result) for result in getattr(self, request)(asked)]

    def add(self, asked: Sequence[tuple[int, Any]]) -> list[Result]:
        """Makes an environment for each pair, whose numbers follow those that are there, and resets it."""
        self._make_more(len(asked))
        return self.reset(asked)

    def _make_more(self, count: int) -> None:
        """Closes all if one cannot be made: nobody would know those that were by their numbers."""
        with on_error(self.close):
            for _ in range(count):
                self.envs.append(_made(self._make))

    def reset(self, asked: Sequence[tuple[int, Any]]) -> list[Result]:
        """Begins episodes. The arguments are pairs of a seed and options, of which either may be None."""
        return [_caught(partial(_reset, self.envs[number], *episode)) for number, episode in asked]

    def step(self, asked: Sequence[tuple[int, Any]]) -> list[Result]:
        return [_caught(partial(_step, self.envs[number], action)) for number, action in asked]

    def advance(self, asked: Sequence[tuple[int, Any]]) -> list[Result]:
        """Steps, and begins the next episode where one ends: ``final`` has its last observation and info."""
        return [_caught(partial(_advance, self.envs[number], action)) for number, action in asked]

    def warm_up(self, asked: Sequence[tuple[int, Any]]) -> list[Result]:
        """Takes so many sampled steps."""
        return [_caught(partial(_warm_up, self.envs[number], steps)) for number, steps in asked]

    def close(self) -> None:
        """Closes all, then raises what the last that could not be closed raised. Idempotent."""
        with ExitStack() as stack:
            while self.envs:
                stack.callback(self.envs.pop().close)


def _made(make: Callable[[], Any]) -> gymnasium.Env[Any, Any]:
    try:
        env: gymnasium.Env[Any, Any] = make()
    except SystemExit as error:
        raise EmulatorError(f"an environment cannot be made: {described(error)}") from error
    if not all(callable(getattr(env, name, None)) for name in ("reset", "step", "close")):
        raise TypeError(f"what makes environments made {env!r:.80}, which is no Gymnasium environment")
    return env


def _reset(env: gymnasium.Env[Any, Any], seed: int | None = None, options: Any = None) -> Result:
    observation, info = env.reset(seed=seed, options=deepcopy(options))
    return Result(deepcopy(observation), info)


def _step(env: gymnasium.Env[Any, Any], action: Any) -> Result:
    """Copies what environment and caller may change later, or share with other environments, as vectors do."""
    observation, reward, terminated, truncated, info = env.step(deepcopy(action))
    return Result(deepcopy(observation), info, float(reward), bool(terminated), bool(truncated))


def _advance(env: gymnasium.Env[Any, Any], action: Any) -> Result:
    result = _step(env, action)
    if not (result.terminated or result.truncated):
        return result
    first = _reset(env)
    return msgspec.structs.replace(
        result, observation=first.observation, info=first.info, final=(result.observation, result.info)
    )


def _warm_up(env: gymnasium.Env[Any, Any], steps: int) -> Result:
    result = _reset(env)
    for _ in range(steps):
        result = _step(env, env.action_space.sample())
        if result.terminated or result.truncated:
            env.reset()
    return result


def _caught(act: Callable[[], Result]) -> Result:
    try:
        return act()
    except (Exception, SystemExit) as error:
        return Result(raised=described(error))


def _travelling(result: Result) -> msgspec.Raw:
    """Returns a result as MessagePack, without the entries of its infos that cannot travel."""
    final = None if result.final is None else (result.final[0], _info(result.final[1]))
    try:
        return msgspec.Raw(encode(msgspec.structs.replace(result, info=_info(result.info), final=final)))
    except TypeError as error:
        return msgspec.Raw(encode(Result(raised=f"its observation: {error}")))


def _info(info: Mapping[Any, Any]) -> dict[str, msgspec.Raw]:
    found = {}
    for key, value in info.items():
        with suppress(TypeError):
            found[str(key)] = msgspec.Raw(encode(value))
    return found


def write_frame(content: Any) -> bytes:
    data = encode(content)
    return len(data).to_bytes(4, "big") + data


_DECODER = msgspec.msgpack.Decoder(ext_hook=from_array)


def _read_frame() -> Any:
    while (head := _read_exactly(4)) == PING:
        pass
    return _DECODER.decode(_read_exactly(int.from_bytes(head, "big"))) if len(head) == 4 else None


def _read_exactly(size: int) -> bytes:
    """Returns so many bytes of stdin, fewer at its end, or once nothing has come for too long."""
    data = bytearray()
    while len(data) < size and select.select([0], [], [], _ORPHAN_S)[0] and (part := os.read(0, size - len(data))):
        data += part
    return bytes(data)


def standard_frames() -> tuple[BinaryIO, queue.SimpleQueue[Any]]:
    """Returns stdout for frames, to be flushed, and the contents of those that come on stdin; None is their end."""
    answers = os.fdopen(os.dup(1), "wb")
    os.dup2(2, 1)  # what environments print must not come between frames
    requests: queue.SimpleQueue[Any] = queue.SimpleQueue()
    threading.Thread(target=_read_requests, args=[requests], daemon=True).start()
    return answers, requests


def _serve() -> None:
    answers, requests = standard_frames()
    hosted: Any = None
    failure = ""
    try:
        hosted = pickle.loads(requests.get()["hosted"])()  # from the host, as everything that is packed
    except Exception:
        failure = traceback.format_exc(limit=-4)
    while (request := requests.get()) is not None:
        try:
            results = None if failure else hosted.answer(request["do"], request["with"])
            answer = {"error": failure} if failure else {"results": results}
        except Exception:
            answer = {"error": traceback.format_exc(limit=-4)}
        answers.write(write_frame(answer))
        answers.flush()
    if hosted is not None:
        hosted.close()


def _read_requests(requests: queue.SimpleQueue[Any]) -> None:
    """Reads to the end of stdin. An environment that hangs then is not waited for."""
    with suppress(msgspec.DecodeError):  # the end came in the middle of a frame
        while (request := _read_frame()) is not None:
            requests.put(request)
    requests.put(None)
    time.sleep(_CLOSE_LIMIT_S)
    os._exit(1)


if __name__ == "__main__":
    sys.exit(guarded(_serve, None))
