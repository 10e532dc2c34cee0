"""The DevTools protocol of a browser over two pipes, which nobody but this process and the browser can use."""

from __future__ import annotations

import base64
import json
import os
import select
import string
import time
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from digirl_dist.errors import EmulatorError

Params = Mapping[str, Any]
Heard = Callable[[str, dict[str, Any]], None]

_END = b"\0"
_IDLE_S = 0.016
_READ_BYTES = 1 << 18
_LONGEST_MESSAGE = 64 << 20


class DevtoolsError(EmulatorError):
    """The browser refused a command."""


class Devtools:
    """One end of the two pipes. Everything waits with a deadline, as ``time.monotonic`` tells it.

    While an answer is awaited, events are told to ``heard``, and ``idle`` is called whenever nothing came for 16 ms.
    What these send in turn must not be waited for.
    """

    def __init__(self, to_browser: int, from_browser: int) -> None:
        """Owns both descriptors from now on."""
        os.set_blocking(to_browser, False)
        os.set_blocking(from_browser, False)
        self._to, self._from = to_browser, from_browser
        self.heard: Heard = lambda event, params: None
        self.idle: Callable[[], None] = lambda: None
        self.session: str | None = None
        """The page that commands are for; the browser itself until it is known."""
        self._sent = 0
        self._awaited: set[int] = set()
        self._answers: dict[int, dict[str, Any]] = {}
        self._unread = bytearray()

    def ask(
        self, method: str, params: Params, deadline: float, meanwhile: Callable[[], object] | None = None
    ) -> dict[str, Any]:
        """The result of a command. Raises DevtoolsError if it is refused, EmulatorError if no answer comes."""
        return self.ask_all([(method, params)], deadline, meanwhile)[0]

    def ask_all(
        self, commands: Sequence[tuple[str, Params]], deadline: float, meanwhile: Callable[[], object] | None = None
    ) -> list[dict[str, Any]]:
        """The results of commands that are sent at once. The browser carries them out in their order.

        ``meanwhile`` is done once they are sent, before their answers are awaited.
        """
        numbers = [self.begin(method, params, deadline) for method, params in commands]
        try:
            if meanwhile is not None:
                meanwhile()
            self.wait(lambda: all(map(self.is_answered, numbers)), deadline, commands[-1][0])
            return [self.result(number) for number in numbers]
        finally:
            self.forget(*numbers)

    def begin(self, method: str, params: Params, deadline: float) -> int:
        """Sends a command whose answer is kept, under the number that this returns, until it is forgotten."""
        number = self.send(method, params, deadline)
        self._awaited.add(number)
        return number

    def is_answered(self, number: int) -> bool:
        return number in self._answers

    def result(self, number: int) -> dict[str, Any]:
        """The result of a command that is answered. Raises DevtoolsError if it was refused."""
        answer = self._answers[number]
        if "error" in answer:
            raise DevtoolsError(str(answer["error"].get("message", answer["error"])))
        return dict(answer["result"])

    def forget(self, *numbers: int) -> None:
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
            if not _is_ready(self._to, select.POLLOUT, deadline - time.monotonic()):
                raise _late(method)
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
            left = deadline - time.monotonic()
            if _is_ready(self._from, select.POLLIN, min(left, _IDLE_S)):
                self._take()
            elif left <= 0:
                raise _late(what)
            else:
                self.idle()

    def close(self) -> None:
        os.close(self._to)
        os.close(self._from)

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


def _is_ready(pipe: int, event: int, limit_s: float) -> bool:
    poll = select.poll()
    poll.register(pipe, event)
    return bool(poll.poll(max(0.0, limit_s) * 1000))


def _late(what: str) -> EmulatorError:
    return EmulatorError(f"no answer to {what} in time")


FRAME_FLAGS = (
    "--enable-begin-frame-control",
    "--run-all-compositor-stages-before-draw",  # a frame shows all that scripts have changed before
    "--disable-checker-imaging",  # and the images whole
    "--disable-threaded-animation",
    "--disable-threaded-scrolling",
    "--disable-new-content-rendering-timeout",
)
"""A headless shell that is started with these draws a frame for each command and none of its own."""

_COMMAND = "HeadlessExperimental.beginFrame"
_LONGEST_FRAME_S = 60.0
_LOOK_S = 0.005
_ALIKE = 2
"""Frames in a row that show nothing new, after which no more is expected: a scroll shows in every other one."""
_MOST_FRAMES = 8
"""Drawn of a page that never rests; each takes a third of a millisecond."""


class Frames:
    """Draws frames one at a time, and goes on while something else is awaited: it may be waiting for a frame."""

    def __init__(self, devtools: Devtools) -> None:
        self._devtools = devtools
        self._latest: int | None = None
        devtools.idle = self._keep_on

    def begin(self, deadline: float, **wanted: Any) -> int:
        """Lets the page's scripts know of a new frame, after the commands that were sent before.

        Waits for the frame before, and not for this one; returns the number of its command.
        """
        self._finish(deadline)
        if self._latest is not None:
            self._devtools.forget(self._latest)
        self._latest = self._devtools.begin(_COMMAND, wanted, deadline)
        return self._latest

    def picture(self, deadline: float) -> bytes:
        """PNG of the page as it is once its frames no longer differ. Raises EmulatorError if there is none in time."""
        while time.monotonic() < deadline:
            self._settle(deadline)
            drawn = self._draw(deadline, screenshot={"format": "png", "optimizeForSpeed": True})
            if "screenshotData" in drawn:
                return base64.b64decode(drawn["screenshotData"])
            time.sleep(_LOOK_S)  # a page that was just opened has nothing to show for a moment
        raise EmulatorError("the browser drew no picture of the page")

    def _settle(self, deadline: float) -> None:
        alike = 0
        for _ in range(_MOST_FRAMES):
            alike = 0 if self._draw(deadline).get("hasDamage") else alike + 1
            if alike == _ALIKE:
                break

    def _draw(self, deadline: float, **wanted: Any) -> dict[str, Any]:
        number = self.begin(deadline, **wanted)
        self._finish(deadline)
        return self._devtools.result(number)

    def _finish(self, deadline: float) -> None:
        self._devtools.wait(self._is_finished, deadline, "a frame")

    def _is_finished(self) -> bool:
        return self._latest is None or self._devtools.is_answered(self._latest)

    def _keep_on(self) -> None:
        if self._is_finished():
            self.begin(time.monotonic() + _LONGEST_FRAME_S)


_SHIFT = 8
_SHIFTED = dict(zip('~!@#$%^&*()_+{}|:"<>?', "`1234567890-=[]\\;',./", strict=True))
_PUNCTUATION = {
    ";": ("Semicolon", 186),
    "=": ("Equal", 187),
    ",": ("Comma", 188),
    "-": ("Minus", 189),
    ".": ("Period", 190),
    "/": ("Slash", 191),
    "`": ("Backquote", 192),
    "[": ("BracketLeft", 219),
    "\\": ("Backslash", 220),
    "]": ("BracketRight", 221),
    "'": ("Quote", 222),
    " ": ("Space", 32),
}
"""Names of keys and their virtual key codes."""

_ENTER = {"key": "Enter", "code": "Enter", "windowsVirtualKeyCode": 13, "text": "\r"}
_NAMED = {"\n": _ENTER, "\r": _ENTER, "\t": {"key": "Tab", "code": "Tab", "windowsVirtualKeyCode": 9}}


def key_events(text: str) -> list[dict[str, Any]]:
    """Parameters of ``Input.dispatchKeyEvent``: each key goes down and up again."""
    events = []
    for character in text.replace("\r\n", "\n"):
        key = _NAMED.get(character) or _printed(character)
        events += [{"type": "keyDown", **key}, {"type": "keyUp", **{k: v for k, v in key.items() if k != "text"}}]
    return events


def _printed(character: str) -> dict[str, Any]:
    base = _SHIFTED.get(character, character.lower())
    key: dict[str, Any] = {"key": character, "text": character}
    if base in string.ascii_lowercase:
        key |= {"code": f"Key{base.upper()}", "windowsVirtualKeyCode": ord(base.upper())}
    elif base in string.digits:
        key |= {"code": f"Digit{base}", "windowsVirtualKeyCode": ord(base)}
    elif base in _PUNCTUATION:
        code, number = _PUNCTUATION[base]
        key |= {"code": code, "windowsVirtualKeyCode": number}
    if base != character and "code" in key:
        key["modifiers"] = _SHIFT
    return key
