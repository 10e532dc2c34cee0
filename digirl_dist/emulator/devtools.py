"""The DevTools protocol of a browser over two pipes, which nobody but this process and the browser can use."""

from __future__ import annotations

import json
import os
import select
import time
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from digirl_dist.errors import EmulatorError

Params = Mapping[str, Any]
Heard = Callable[[str, dict[str, Any]], None]

_END = b"\0"
_READ_BYTES = 1 << 18
_LONGEST_MESSAGE = 64 << 20


class DevtoolsError(EmulatorError):
    """The browser refused a command."""


class Devtools:
    """One end of the two pipes. Everything waits with a deadline, as ``time.monotonic`` tells it.

    Events are told to ``heard`` while an answer is awaited; what it sends in turn must not be waited for.
    """

    def __init__(self, to_browser: int, from_browser: int) -> None:
        """Owns both descriptors from now on."""
        os.set_blocking(to_browser, False)
        os.set_blocking(from_browser, False)
        self._to, self._from = to_browser, from_browser
        self.heard: Heard = lambda event, params: None
        self.session: str | None = None
        """The page that commands are for; the browser itself until it is known."""
        self._sent = 0
        self._awaited: set[int] = set()
        self._answers: dict[int, dict[str, Any]] = {}
        self._unread = bytearray()

    def ask(self, method: str, params: Params, deadline: float) -> dict[str, Any]:
        """The result of a command. Raises DevtoolsError if it is refused, EmulatorError if no answer comes."""
        return self.ask_all([(method, params)], deadline)[0]

    def ask_all(self, commands: Sequence[tuple[str, Params]], deadline: float) -> list[dict[str, Any]]:
        """The results of commands that are sent at once. The browser carries them out in their order."""
        numbers = [self.send(method, params, deadline) for method, params in commands]
        self._awaited.update(numbers)
        try:
            self.wait(lambda: all(number in self._answers for number in numbers), deadline, commands[-1][0])
            return [_result(self._answers[number]) for number in numbers]
        finally:
            self._awaited.difference_update(numbers)
            for number in numbers:
                self._answers.pop(number, None)

    def send(self, method: str, params: Params, deadline: float) -> int:
        """Does not wait for an answer; returns the command's number."""
        self._sent += 1
        message = {"id": self._sent, "method": method, "params": params}
        if self.session is not None:
            message["sessionId"] = self.session
        left = memoryview(json.dumps(message).encode() + _END)
        while left:
            self._until_ready(self._to, select.POLLOUT, deadline, method)
            try:
                left = left[os.write(self._to, left) :]
            except BlockingIOError:
                continue  # a pipe that has room for less than what is atomic
            except OSError as error:
                raise EmulatorError("the browser has ended") from error
        return self._sent

    def wait(self, come: Callable[[], bool], deadline: float, what: str) -> None:
        """Read until ``come`` says so. Raises EmulatorError after the deadline, or when the browser has ended."""
        while not come():
            self._until_ready(self._from, select.POLLIN, deadline, what)
            self._take()

    def close(self) -> None:
        os.close(self._to)
        os.close(self._from)

    def _until_ready(self, pipe: int, event: int, deadline: float, what: str) -> None:
        poll = select.poll()
        poll.register(pipe, event)
        if not poll.poll(max(0.0, deadline - time.monotonic()) * 1000):
            raise EmulatorError(f"no answer to {what} in time")

    def _take(self) -> None:
        part = os.read(self._from, _READ_BYTES)
        if not part:
            raise EmulatorError("the browser has ended")
        self._unread += part
        if _END not in part:
            if len(self._unread) > _LONGEST_MESSAGE:
                raise EmulatorError(f"the browser sent a message of more than {_LONGEST_MESSAGE >> 20} MiB")
            return
        *whole, rest = self._unread.split(_END)
        self._unread = rest
        for message in whole:
            self._note(json.loads(message))

    def _note(self, message: dict[str, Any]) -> None:
        if "id" not in message:
            self.heard(message["method"], message.get("params", {}))
        elif message["id"] in self._awaited:
            self._answers[message["id"]] = message


def _result(answer: dict[str, Any]) -> dict[str, Any]:
    if "error" in answer:
        raise DevtoolsError(str(answer["error"].get("message", answer["error"])))
    return dict(answer["result"])
