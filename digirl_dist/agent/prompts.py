"""What chat models are asked at each step, and how the actions that they write are read.

Understood are JSON objects, also in prose or code, with other names and nesting than ours; calls such as
``click(0.3, 0.7)``; lines such as ``Action: swipe up``; and AutoUI's form. Of several actions the last one counts.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Sequence

from digirl_dist.chat import Messages, text_part
from digirl_dist.emulator.aitw import AutoUiReader
from digirl_dist.emulator.touch_actions import DeviceAction
from digirl_dist.errors import ActionError
from digirl_dist.types import Json

_SYSTEM = """\
You operate a device with a touch screen to do a task. Each turn shows its screen. Answer with the one action to take
next, as one line of JSON and nothing else:
{"type": "tap", "x": 0.5, "y": 0.25}
{"type": "swipe", "x": 0.5, "y": 0.75, "to_x": 0.5, "to_y": 0.25}
{"type": "type", "text": "hello"}
{"type": "enter"}, {"type": "back"}, {"type": "home"} or {"type": "wait"}
{"type": "done"} when the task is done, {"type": "impossible"} when it cannot be done
x and y are shares of the screen's width and height, from 0 to 1, counted from the top left corner."""


def conversation(text: str, picture: Json, system: str = "") -> Messages:
    """The chat that asks for the next action: ``text`` as the observation has it, ``picture`` a part with the screen.

    ``system`` replaces the general rules, if it is not empty.
    """
    rules = {"role": "system", "content": [text_part(system or _SYSTEM)]}
    return [rules, {"role": "user", "content": [picture, text_part(text)]}]


def task_text(task: str, latest: Sequence[DeviceAction]) -> str:
    """The text of an observation: the task, and the latest actions, oldest first, in the form they are asked for."""
    actions = "".join(f"\n{json.dumps(action.to_json(), ensure_ascii=False)}" for action in latest)
    before = f"\nYour latest actions:{actions}" if actions else ""
    return f"Task: {task}{before}\nThe next action:"


_LONGEST = 4000
"""Characters at the end of an answer that are looked at."""

_NAMES = {
    "tap": "tap click touch press left_click single_tap long_press",
    "swipe": "swipe drag scroll",
    "type": "type input input_text type_text enter_text write",
    "enter": "enter press_enter keyboard_enter submit",
    "back": "back press_back go_back navigate_back",
    "home": "home press_home go_home navigate_home",
    "wait": "wait idle noop no_op sleep",
    "done": "done finish finished complete completed task_complete status_task_complete terminate stop",
    "impossible": "impossible infeasible task_impossible status_task_impossible fail",
}
_TYPES = {name: kind for kind, names in _NAMES.items() for name in names.split()}
"""What models call the actions."""

_SWIPES = {
    "up": (0.5, 0.75, 0.5, 0.25),
    "down": (0.5, 0.25, 0.5, 0.75),
    "left": (0.8, 0.5, 0.2, 0.5),
    "right": (0.2, 0.5, 0.8, 0.5),
}
"""Where the finger goes."""
_OPPOSITE = {"up": "down", "down": "up", "left": "right", "right": "left"}
_KIND_KEYS = ("type", "action", "action_type", "name", "function", "operation")
_TEXT_KEYS = ("text", "value", "content", "typed_text", "input")
_NUMBER = re.compile(r"-?\d{1,9}(?:\.\d{1,20})?|-?\.\d{1,20}")
_LINE = re.compile(
    r"^[^\w{\n]*(?:(?:next )?action\W+)?(?:\w+\.)?("
    + "|".join(sorted(_TYPES, key=len, reverse=True))
    + r")\b(?![\"']\s*:)(.*)$",
    re.IGNORECASE | re.MULTILINE,
)
_WRITTEN = re.compile(r'"((?:[^"\\]|\\.)*)"|\'([^\']*)\'')
_QUOTED = re.compile(r'"([^"]+)"|“([^“”]+)”')
_DIRECTION = re.compile(r"\b(up|down|left|right)\b", re.IGNORECASE)


def read(answer: str) -> DeviceAction:
    """The action in an answer. Raises ActionError where there is none."""
    text = answer[-_LONGEST:]
    if "action_type" in text and "touch_point" in text:
        return _read_autoui(text)
    for said in reversed(list(_objects(text))):
        try:
            return _from_object(said)
        except (ActionError, OverflowError, RecursionError):  # a number of 400 digits, or lists in lists
            continue
    lines = _LINE.findall(text)
    if not lines:
        raise ActionError(f"{text[:200]!r} names no action")
    name, rest = lines[-1]
    written = _WRITTEN.search(rest)
    typed = rest.strip(" ():`.") if written is None else (written[1] or written[2] or "")
    return _action(name.lower(), [float(found) for found in _NUMBER.findall(rest)], typed, rest)


def read_or_wait(answer: str) -> DeviceAction:
    """The same; ``wait`` where there is none."""
    try:
        return read(answer)
    except ActionError:
        return DeviceAction("wait")


def _read_autoui(text: str) -> DeviceAction:
    reader = AutoUiReader()
    action = reader(text)
    if reader.malformed:
        raise ActionError(f"{text[:200]!r} is no action in AutoUI's form")
    return action


def _objects(text: str) -> Iterator[dict[str, Json]]:
    """The JSON objects in a text, whatever is around them."""
    decoder = json.JSONDecoder()
    place = text.find("{")
    while place >= 0:
        try:
            found, end = decoder.raw_decode(text, place)
        except (ValueError, RecursionError):
            end = place + 1
        else:
            yield found
        place = text.find("{", end)


def _from_object(said: dict[str, Json]) -> DeviceAction:
    """Inner objects (``arguments``, ``action``) count as if they lay outside. Raises ActionError."""
    parts = dict(_flat(said))
    kinds = [value.lower() for key in _KIND_KEYS if isinstance(value := parts.get(key), str)]
    name = next((kind for kind in kinds if kind in _TYPES), None)
    if name is None:
        raise ActionError(f"{said!r} names no action")
    texts = [value for key in _TEXT_KEYS if isinstance(value := parts.get(key), str)]
    numbers = [number for key, value in parts.items() if key not in _TEXT_KEYS for number in _numbers(value)]
    if _TYPES[name] == "done" and texts:  # the answer to what was asked
        return DeviceAction("done", text=_sendable(texts[0]))
    return _action(name, numbers, texts[0] if texts else "", str(parts.get("direction", "")))


def _flat(said: dict[str, Json]) -> Iterator[tuple[str, Json]]:
    for key, value in said.items():
        if isinstance(value, dict):
            yield from _flat(value)
        else:
            yield key.lower(), value


def _numbers(value: Json) -> list[float]:
    """In a number, a list of these, or a text such as ``[0.3, 0.7]``."""
    if isinstance(value, list):
        return [number for part in value for number in _numbers(part)]
    if isinstance(value, str):
        return [float(found) for found in _NUMBER.findall(value)]
    return [] if isinstance(value, bool) or not isinstance(value, int | float) else [float(value)]


def _action(name: str, numbers: list[float], text: str, direction: str) -> DeviceAction:
    """Raises ActionError for places that are missing or off the screen."""
    kind = _TYPES[name]
    if kind == "type":
        return DeviceAction("type", text=_sendable(text))
    if kind not in ("tap", "swipe"):
        return DeviceAction(kind)
    way = _DIRECTION.search(direction)
    if kind == "swipe" and len(numbers) < 4 and way is not None:
        finger = way[1].lower()
        return DeviceAction("swipe", *_SWIPES[_OPPOSITE[finger] if name == "scroll" else finger])
    places = _shares(numbers)
    if kind == "tap" and len(places) == 4:  # the box around it
        places = [(places[0] + places[2]) / 2, (places[1] + places[3]) / 2]
    fields = DeviceAction.FIELDS[kind]
    if len(places) < len(fields):
        raise ActionError(f"{name} needs {len(fields)} numbers, and {len(places)} are there")
    return DeviceAction.from_json({"type": kind, **dict(zip(fields, places, strict=False))})


def _sendable(text: str) -> str:
    """The text without halves of characters, which no file takes."""
    return text.encode("utf-8", "replace").decode("utf-8")


def _shares(numbers: list[float]) -> list[float]:
    """Of the screen's width and height; many models count to 1000 instead."""
    whole = 1000.0 if any(number > 1 for number in numbers) else 1.0
    return [number / whole for number in numbers]


def quoted(text: str) -> list[str]:
    """The parts of ``text`` in double quotes, without them; each once, as no two kinds of action may type the same."""
    return list(dict.fromkeys(one or other for one, other in _QUOTED.findall(text)))
