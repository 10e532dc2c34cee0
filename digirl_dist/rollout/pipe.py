"""Messages between a slot and its emulator's process. A slot never waits for one that was sent only in part."""

from __future__ import annotations

import pickle
import socket
import struct
from typing import Any

import numpy as np

from digirl_dist.trajectory import Observation, Transition

_LENGTH = struct.Struct("!Q")
_CHUNK = 1 << 20


class Pipe:
    """One end of a connected stream socket, which it owns. Not thread-safe."""

    def __init__(self, end: socket.socket) -> None:
        self._socket = end
        self._came = bytearray()

    def fileno(self) -> int:
        return self._socket.fileno()

    def send(self, message: Any) -> None:
        """Sends a message; waits while the socket is full. Raises OSError when the other end is gone."""
        content = pickle.dumps(message, pickle.HIGHEST_PROTOCOL)
        self._socket.sendall(_LENGTH.pack(len(content)) + content)

    def receive(self, flags: int = 0) -> Any:
        """Waits for the next message and returns it. Raises EOFError or OSError when the other end is gone."""
        while (message := self._next()) is None:
            came = self._socket.recv(_CHUNK, flags)
            if not came:
                raise EOFError
            self._came += came
        return message

    def received(self) -> Any:
        """Returns the next message, or None while not all of it has come. Raises as ``receive`` does."""
        try:
            return self.receive(socket.MSG_DONTWAIT)
        except BlockingIOError:
            return None

    def close(self) -> None:
        self._socket.close()

    def _next(self) -> Any:
        start = _LENGTH.size
        if len(self._came) < start:
            return None
        end = start + _LENGTH.unpack_from(self._came)[0]
        if len(self._came) < end:
            return None
        content, self._came = self._came[start:end], self._came[end:]
        return pickle.loads(content)


def plain(answer: Observation | Transition) -> tuple[Any, ...]:
    """Returns the thing as values without classes, which pickle in a third of the time."""
    if isinstance(answer, Transition):
        ends = bool(answer.terminated), bool(answer.truncated), bool(answer.success)
        return *plain(answer.observation), float(answer.reward), *ends, [dict(goal) for goal in answer.achieved]
    vector = None if answer.vector is None else np.asarray(answer.vector, np.float32).tobytes()
    return _whole(answer.text), answer.image, vector


def _whole(text: Any) -> Any:
    """Returns a text without half surrogate pairs, as a page has that cuts its texts; no file can hold them."""
    try:
        text.encode()
    except UnicodeEncodeError:
        return text.encode("utf-16", "surrogatepass").decode("utf-16", "replace")
    except AttributeError:
        pass  # whoever checks the episode says that it is none
    return text


def restored(values: tuple[Any, ...]) -> Observation | Transition:
    """Returns what ``plain`` was given."""
    text, image, vector, *rest = values
    seen = Observation(text, image, None if vector is None else np.frombuffer(bytearray(vector), np.float32))
    return Transition(seen, *rest) if rest else seen
