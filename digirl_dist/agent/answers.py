"""Reads the actions that chat models write: as they are meant, or not at all.

Read are JSON objects and Python's, also inside of tool calls; calls such as ``click(start_box='(250,500)')``; and lines
such as ``CLICK <point>[[250, 500]]</point>``, with the names that UI-TARS, Qwen2.5-VL, OS-Atlas, ShowUI, AutoGLM,
CogAgent, Aguvis and AndroidWorld use; and AutoUI's form. Nothing is taken from prose. An answer is unread if it is
broken, names different actions, an action that these devices lack, or places outside of the screen.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from enum import Enum
from functools import partial
from typing import Any

from digirl_dist.emulator.aitw import DECISION, from_autoui
from digirl_dist.emulator.touch_actions import SAID, UNREAD, DeviceAction
from digirl_dist.errors import ActionError
from digirl_dist.plain_text import in_short
from digirl_dist.types import Json


class Coordinates(Enum):
    """How a model writes a place: in shares of the screen's width and height, thousandths of them, or pixels of the
    picture that it sees."""

    shares = "shares"
    thousandths = "thousandths"
    pixels = "pixels"


@dataclass(frozen=True)
class Shown:
    """What the places in an answer refer to."""

    size: tuple[int, int] | None = None
    """Height and width of the picture that the model sees, in pixels."""
    marks: Sequence[tuple[float, float]] = ()
    """The centres of the numbered elements, from number 1 on, in shares."""


_LONGEST = 1 << 15
"""Characters of an answer, without its thoughts, that are read."""
LONGEST_REASON = 200
_DEEPEST = 16

_NAMES = {
    "tap": "tap click touch left_click left_single single_tap",
    "press": "press",
    "drag": "drag left_click_drag",
    "swipe": "swipe swipe_up swipe_down swipe_left swipe_right",
    "scroll": "scroll scroll_up scroll_down scroll_left scroll_right",
    "type": "type type_name type_at input input_text type_text enter_text write typewrite",
    "key": "key keypress key_press press_key hotkey keyevent",
    "system": "system_button press_button",
    "enter": "enter press_enter keyboard_enter",
    "back": "back press_back go_back navigate_back",
    "home": "home press_home go_home navigate_home",
    "wait": "wait idle noop no_op sleep",
    "done": "done finish finished complete completed end task_complete status_task_complete terminate stop status "
    "answer",
    "impossible": "impossible infeasible task_impossible status_task_impossible fail",
    "": "long_press longpress double_click doubleclick double_tap left_double triple_click right_click rightclick "
    "right_single middle_click hover mouse_move move move_to moveto dragto mouse_down mouse_up key_down keydown key_up "
    "keyup hold_key gesture open open_app launch launch_app awake select select_text select_option copy paste cut "
    "clear clear_text screenshot call_user interact ask_user info note call_api take_over quote_text llm",
}
_KINDS = {name: kind for kind, names in _NAMES.items() for name in names.split()}
"""What models call their actions; empty: actions that these devices lack."""
_STRONG = ("action_type", "action", "type", "operation", "function")
"""Keys that name the action; ``name`` and the name of a call do so where none of them does."""
_INSIDE = ("arguments", "parameters", "args", "kwargs")
_TEXTS = ("text", "content", "value", "message", "typed_text", "input_text", "answer", "input")
_KEYS = ("key", "keys", "button", "text", "value", "keycode")
_BOXES = ("box", "bbox", "start_box", "element")
_POINTS = ("coordinate", "coordinates", "point", "position", "location", "start_point", "start_coordinate")
_STARTS = (*_POINTS, "start", "start_position", "from", "from_coord", *_BOXES)
_ENDS = ("coordinate2", "end_point", "end_coordinate", "end", "end_position", "to", "to_coord", "end_box")
_X, _TO_X = ("x", "x1", "start_x", "from_x"), ("to_x", "x2", "end_x")
_MARKS = ("mark", "index", "element_index", "element_id")
_AMOUNTS = ("pixels", "page", "clicks")
"""Of scrolling, above 0 upwards."""
_CHANGED = ("press_enter", "submit", "overwrite", "clear", "clear_first", "double")
"""Flags that make another action of it."""
_BUTTONS, _ENTER = ("left", "", None), ("enter", "return", "\n", "keycode_enter")
_SUCCESS, _FAILURE = (
    ("success", "complete", "done", "task complete"),
    ("failure", "fail", "failed", "infeasible", "task impossible"),
)
_DIRECTIONS = {"up": "down", "down": "up", "left": "right", "right": "left"}
"""And where the finger goes to scroll there."""
_REACH = {"up": (0.0, -0.25), "down": (0.0, 0.25), "left": (-0.3, 0.0), "right": (0.3, 0.0)}

_TOKEN = re.compile(
    r"""\s*(?:("(?:[^"\\\n]|\\.)*"|'(?:[^'\\\n]|\\.)*')"""
    r"|([-+]?(?:\d{1,15}(?:\.\d{0,20})?|\.\d{1,20})(?:[eE][-+]?\d{1,3})?(?![\w.]))|([A-Za-z_][\w.]*)|([\[\](){},:=]))"
)
_ESCAPE = re.compile(r"\\(?:u([0-9a-fA-F]{4})|(.))")
_ESCAPES = {"n": "\n", "t": "\t", "r": "\r", "b": "\b", "f": "\f"}
_WORDS: Mapping[str, Json] = {"null": None, "None": None, "true": True, "True": True, "false": False, "False": False}
_BEGIN = re.compile(r"\{|(?<![\w.])([A-Za-z_][\w.]*)\(")
_OBJECT = re.compile(r"""\{\s{0,9}(?:"[^"\n]{0,80}"|'[^'\n]{0,80}'|\w{1,40})\s{0,9}:""")
_QUOTED = re.compile(r'"(?:[^"\\]|\\.)*"|\'(?:[^\'\\]|\\.)*\'')
_BRACKETED = re.compile(r"\[[^\[\]]*\]")
_PAIRS = ("[", "]"), ("(", ")")
_NUMBER = re.compile(r"-?(?:\d{1,9}(?:\.\d{1,20})?|\.\d{1,20})")
_TAG = re.compile(r"</?\|?\w{1,20}\|?>")
_THOUGHTS = re.compile(r"\s*<think(?:ing)?>.*?</think(?:ing)?>|.*?</think(?:ing)?>[ \t]*\n", re.IGNORECASE | re.DOTALL)
_UNENDED = re.compile(r"\s*(?:<think(?:ing)?>|thoughts?\s{0,9}:)", re.IGNORECASE)
_BEFORE = r"^[^\w\n{\[(\"']{0,9}"
"""What may stand before the first word of a line."""
_GROUNDED = re.compile(_BEFORE + r"grounded operation\s{0,9}:", re.IGNORECASE | re.MULTILINE)
_ACTION = re.compile(
    _BEFORE + r"(?:<tool_call>|<ans(?:wer)?>|(?:next )?actions?\s{0,9}:)", re.IGNORECASE | re.MULTILINE
)
_LINE = re.compile(
    _BEFORE + "(" + "|".join(sorted(_KINDS, key=len, reverse=True)).replace("_", "[_ ]") + r")\b(?![(\"'])(.*)$",
    re.IGNORECASE | re.MULTILINE,
)


def action_of(answer: str, coordinates: Coordinates = Coordinates.shares, shown: Shown = Shown()) -> dict[str, Json]:
    """Returns the action in an answer, with the answer; see ``read_or_wait``."""
    return {**read_or_wait(answer, partial(read, coordinates=coordinates, shown=shown)), SAID: answer}


def read_or_wait(answer: str, reader: Callable[[str], DeviceAction]) -> dict[str, Json]:
    """Returns the action that ``reader`` finds; ``wait`` with the reason as ``unread`` if it raises ActionError."""
    try:
        return reader(answer).to_json()
    except ActionError as error:
        return {"type": "wait", UNREAD: in_short(error, LONGEST_REASON)}


def read(answer: str, coordinates: Coordinates = Coordinates.shares, shown: Shown = Shown()) -> DeviceAction:
    """Returns the action in an answer. Raises ActionError where it is not clear."""
    text = _decisive(answer)
    if len(text) > _LONGEST:
        raise ActionError(f"{len(text)} characters, in which no action is looked for")
    if "action_type" in text and "touch_point" in text:
        return from_autoui(text.rpartition(DECISION)[2].strip())
    found = [*_written(text), *_lines(text)]
    actions = {_Reading(said, coordinates, shown).action() for said in found}
    if len(actions) != 1:
        raise ActionError(f"{text[:200]!r} names {'different actions' if actions else 'no action'}")
    return actions.pop()


def edges(coordinates: Coordinates, size: tuple[int, int] | None) -> tuple[float, float]:
    """Returns the numbers of the right and the lower edge of the screen. Raises ActionError for an unknown size."""
    if coordinates is not Coordinates.pixels:
        return (1.0, 1.0) if coordinates is Coordinates.shares else (1000.0, 1000.0)
    if size is None:
        raise ActionError("the size of the picture, in whose pixels places are written, is not known")
    return float(size[1]), float(size[0])


def _decisive(answer: str) -> str:
    """Returns what follows an answer's thoughts, or the word that announces its action.

    Raises ActionError if that word is part of a text between quotes.
    """
    thoughts = _THOUGHTS.match(answer)
    text = answer[thoughts.end() :] if thoughts else answer
    for announced in (_GROUNDED, _ACTION):
        if found := announced.search(text):
            _ = [*_written(text[: found.start()])]
            return text[found.end() :]
    if _UNENDED.match(text):
        raise ActionError("thoughts that no action follows")
    return text


@dataclass
class _Said:
    """A call or an object (without a name): what it names, and further values of a call."""

    name: str = ""
    pairs: list[tuple[str, Any]] = field(default_factory=list)
    values: list[Any] = field(default_factory=list)


class _Parser:
    """Reads values as JSON and Python write them, from a place on. Raises ActionError."""

    def __init__(self, text: str, place: int) -> None:
        self._text = text
        self.place = place

    def _token(self) -> tuple[str | None, str | None, str | None, str | None]:
        found = _TOKEN.match(self._text, self.place)
        if found is None:
            raise ActionError("no value")
        self.place = found.end()
        return found[1], found[2], found[3], found[4]

    def _next_is(self, *marks: str) -> bool:
        """Takes the next token if it is one of these."""
        before = self.place
        if self._token()[3] in marks:
            return True
        self.place = before
        return False

    def value(self, depth: int = _DEEPEST) -> Any:
        string, number, word, mark = self._token()
        if string is not None:
            return _unescaped(string[1:-1])
        if number is not None:
            return float(number)
        if word is not None:
            return _WORDS.get(word, word)
        if mark not in ("{", "[", "(") or not depth:
            raise ActionError("no value, or one in too many others")
        if mark == "{":
            return self.inside("}", depth - 1)
        return self.inside("]" if mark == "[" else ")", depth - 1).values

    def inside(self, end: str, depth: int = _DEEPEST) -> _Said:
        """Returns what is listed up to ``end``."""
        said = _Said()
        while not self._next_is(end):
            value = self.value(0 if end == "}" else depth)
            if end != "]" and self._next_is(":" if end == "}" else "="):
                said.pairs.append((str(value).lower(), self.value(depth)))
            elif end == "}":
                raise ActionError("a value without a name")
            else:
                said.values.append(value)
            if not self._next_is(","):
                if not self._next_is(end):
                    raise ActionError("no comma")
                break
        return said


def _unescaped(text: str) -> str:
    """Returns what a text between quotes stands for. Halves of characters, which no file takes, are replaced."""

    def plain(found: re.Match[str]) -> str:
        code, letter = found.groups()
        if code is None and letter.isalnum() and letter not in _ESCAPES:
            raise ActionError(f"\\{letter} has several meanings")
        return chr(int(code, 16)) if code else _ESCAPES.get(letter, letter)

    return _ESCAPE.sub(plain, text).encode("utf-16", "surrogatepass").decode("utf-16", "replace")


def _written(text: str) -> Iterator[_Said]:
    """Yields the objects that name an action, and the calls of one. Raises ActionError for broken ones."""
    place = 0
    while found := _BEGIN.search(text, place):
        name, place = _plain((found[1] or "").rpartition(".")[2]), found.end()
        if name not in _KINDS and name != "do" and not _OBJECT.match(text, found.start()):
            continue
        parser = _Parser(text, place)
        try:
            said = parser.inside(")" if name else "}")
        except ActionError:
            raise ActionError(f"{text[found.start() :][:200]!r} is broken") from None
        place, said.name = parser.place, name
        if name or any(key in _STRONG or key == "name" for key, _ in _flat(said.pairs)):
            yield said


def _lines(text: str) -> Iterator[_Said]:
    """Yields the lines that are an action and nothing else."""
    for name, rest in _LINE.findall(text):
        name, rest = _plain(name), rest.strip(" \t.:`*")
        if not rest:
            yield _Said(name)
        elif rest.lower() in _DIRECTIONS or (rest[-1] in ")]>" and _KINDS[name] != "type" and _numbers_in(rest)):
            yield _Said(name, values=[rest])
        elif _QUOTED.fullmatch(rest):
            yield _Said(name, values=[_unescaped(rest[1:-1])])
        elif _BRACKETED.fullmatch(rest):
            yield _Said(name, values=[rest[1:-1]])


def _plain(name: str) -> str:
    return re.sub(r"[\s-]+", "_", name.strip().lower())


def _flat(pairs: Sequence[tuple[str, Any]]) -> Iterator[tuple[str, Any]]:
    """Yields the pairs of inner objects as if they lay outside, those of arguments in a string included."""
    for key, value in pairs:
        if key in _INSIDE and isinstance(value, str) and value.lstrip().startswith("{"):
            try:
                value = _Parser(value, 0).value()
            except ActionError:
                raise ActionError(f"{value[:200]!r} is broken") from None
        if isinstance(value, _Said):
            yield from _flat(value.pairs)
        else:
            yield key, value


def _numbers_in(text: str) -> list[float]:
    """Returns the numbers of a text that has nothing else, as ``[0.3, 0.7]`` or ``<point>3 7</point>``; else none."""
    parts = [part for part in re.split(r"[\s,\[\]()]+", _TAG.sub(" ", text)) if part]
    is_place = all(map(_NUMBER.fullmatch, parts)) and all(text.count(one) == text.count(other) for one, other in _PAIRS)
    return [float(part) for part in parts] if is_place else []


class _Reading:
    """What is meant by what was said. Raises ActionError where that is not clear."""

    def __init__(self, said: _Said, coordinates: Coordinates, shown: Shown) -> None:
        self._coordinates, self._shown, self._edges = coordinates, shown, edges(coordinates, shown.size)
        self._fields: dict[str, Any] = {}
        for key, value in _flat(said.pairs):
            if key in self._fields and self._fields[key] != value:
                raise ActionError(f"{key} is there twice")
            self._fields[key] = value
        self._name = self._named(said.name)
        self._words = [value for value in said.values if isinstance(value, str) and not self._is_place(value)]
        self._numbers = _numbers([value for value in said.values if value not in self._words])

    def _is_place(self, value: str) -> bool:
        return _KINDS[self._name] not in ("type", "done") and bool(_numbers_in(value))

    def action(self) -> DeviceAction:
        """Returns the action."""
        if any(self._fields.get(name) for name in _CHANGED):
            raise ActionError(f"{self._name} with something that these devices lack")
        match _KINDS[self._name]:
            case "tap":
                return self._tap()
            case "press" if not (self._words or self._fields.get("key")):
                return self._tap()
            case "press" | "key" | "system":
                return self._key()
            case "swipe" | "scroll" | "drag":
                return self._swipe()
            case "type":
                return self._type()
            case "done" | "impossible" as kind:
                return self._end(kind)
            case kind if kind != "wait" and (self._text() is not None or self._place()):
                raise ActionError(f"{self._name} with a text or a place is not clear")
            case kind:
                return DeviceAction(kind)

    def _named(self, call: str) -> str:
        names: set[str] = set()
        for values in ([self._fields.get(key) for key in _STRONG], [self._fields.get("name"), call]):
            names = names or {name for one in values if isinstance(one, str) and (name := _plain(one)) in _KINDS}
        if len(names) != 1 or not all(map(_KINDS.get, names)):
            raise ActionError(f"{', '.join(sorted(names)) or call or 'it'} is no action that these devices have")
        return names.pop()

    def _tap(self) -> DeviceAction:
        once = self._fields.get("clicks", 1) == self._fields.get("num_clicks", 1) == 1
        if self._fields.get("button", "left") not in _BUTTONS or not once or self._points(_ENDS, _TO_X):
            raise ActionError(f"{self._name} is more than a tap")
        x, y = self._centre(self._place())
        return DeviceAction("tap", x, y)

    def _swipe(self) -> DeviceAction:
        scrolls, start, end = _KINDS[self._name] == "scroll", self._place(), self._points(_ENDS, _TO_X)
        if len(start) == 4 and not end and not any(self._fields.get(name) for name in _BOXES):
            start, end = start[:2], start[2:]
        direction = self._direction(start)
        if (direction is None) == (not end) or (scrolls and end):
            raise ActionError(f"{self._name} needs a direction, or two places")
        if direction is None:
            return DeviceAction("swipe", *self._centre(start), *self._centre(end))
        right, down = _REACH[_DIRECTIONS[direction] if scrolls else direction]
        x, y = self._centre(start) if len(start) > 1 else (0.5, 0.5)
        x, y = min(max(x, abs(right)), 1 - abs(right)), min(max(y, abs(down)), 1 - abs(down))
        return DeviceAction("swipe", x - right, y - down, x + right, y + down)

    def _direction(self, start: list[float]) -> str | None:
        told = [self._name.rpartition("_")[2], self._fields.get("direction"), self._fields.get("value"), *self._words]
        found = {one.lower() for one in told if isinstance(one, str)} & _DIRECTIONS.keys()
        amounts = _numbers([self._fields[name] for name in _AMOUNTS if self._fields.get(name) is not None])
        amounts += start if len(start) == 1 else []
        if not found and _KINDS[self._name] == "scroll":
            found = {"up" if amount > 0 else "down" for amount in amounts if amount}
        if len(found) > 1 or (self._fields.get("direction") and not found):
            raise ActionError(f"{self._name} has no clear direction")
        return found.pop() if found else None

    def _type(self) -> DeviceAction:
        text, place = self._text(), self._place()
        if text is None:
            raise ActionError(f"{self._name} has no text")
        if not place:
            return DeviceAction("type", text=text)
        x, y = self._centre(place)
        return DeviceAction("type_at", x, y, text=text)

    def _key(self) -> DeviceAction:
        given = [self._fields[name] for name in _KEYS if name in self._fields] + self._words
        keys = [key for one in given for key in (one if isinstance(one, list) else [one])]
        key = keys[0].lower() if len(keys) == 1 and isinstance(keys[0], str) else ""
        named = {"back", "home", "enter"} if _KINDS[self._name] == "system" else {"back"}
        kind = "enter" if key in _ENTER else key.removeprefix("keycode_")
        if kind not in named | {"enter"} and key != "keycode_home":
            raise ActionError(f"{self._name} {keys!r:.100}: a key that these devices lack")
        return DeviceAction(kind)

    def _end(self, kind: str) -> DeviceAction:
        text, status = self._text(), self._fields.get("status", self._fields.get("goal_status"))
        if status is None and text in (*self._words, self._fields.get("value")) and _is_status(text):
            text, status = None, text
        if self._fields.get("success") is False:
            status = "failure"
        told = status or ("" if self._name in ("status", "answer") and text is None else "done")
        if not _is_status(told):
            raise ActionError(f"{self._name} {told!r:.100} does not say how it ended")
        if kind == "impossible" or told.lower() in _FAILURE:
            return DeviceAction("impossible")
        return DeviceAction("done", text=text or "")

    def _text(self) -> str | None:
        given = {self._fields[name] for name in _TEXTS if isinstance(self._fields.get(name), str)} | {*self._words}
        if len(given) > 1:
            raise ActionError(f"{self._name} has several texts")
        return given.pop() if given else None

    def _place(self) -> list[float]:
        """Returns the numbers of where it begins; none if it does not say."""
        ways = [self._points(_STARTS, _X), self._numbers, self._marked()]
        found = [numbers for numbers in ways if numbers]
        if len(found) > 1:
            raise ActionError(f"{self._name} has several places")
        return found[0] if found else []

    def _points(self, names: Sequence[str], xs: Sequence[str]) -> list[float]:
        given = [self._fields.get(name) for name in names]
        pairs = [[self._fields.get(x), self._fields.get(x.replace("x", "y"))] for x in xs]
        given += [pair for pair in pairs if pair != [None, None]]
        found = [numbers for value in given if value is not None and (numbers := _numbers(value))]
        if any(numbers != found[0] for numbers in found):
            raise ActionError(f"{self._name} has several places")
        return found[0] if found else []

    def _marked(self) -> list[float]:
        """Returns the place of a numbered element, in the model's coordinates."""
        marks = [self._fields[name] for name in _MARKS if self._fields.get(name) is not None]
        if not marks:
            return []
        if len(marks) > 1 or not isinstance(marks[0], float) or marks[0] not in range(1, len(self._shown.marks) + 1):
            raise ActionError(f"{self._name} {marks!r:.50}: there are {len(self._shown.marks)} numbered elements")
        return [share * most for share, most in zip(self._shown.marks[int(marks[0]) - 1], self._edges, strict=True)]

    def _centre(self, numbers: list[float]) -> tuple[float, float]:
        """Returns a point in shares: that of two numbers, or the centre of a box, which has four."""
        if len(numbers) not in (2, 4):
            raise ActionError(f"{self._name} needs a place of 2 or 4 numbers, and {len(numbers)} are there")
        whole = self._coordinates is Coordinates.shares or all(map(float.is_integer, numbers))
        if max(numbers) <= 1 and not whole:
            raise ActionError(f"{numbers} are shares, and agent.coordinates={self._coordinates.value}")
        wide, high = self._edges
        x, y = (numbers[0] + numbers[-2]) / 2 / wide, (numbers[1] + numbers[-1]) / 2 / high
        if not all(0 <= number / most <= 1 for number, most in zip(numbers, (wide, high) * 2, strict=False)):
            raise ActionError(f"{numbers} lie outside of the screen, in {self._coordinates.value}")
        return x, y


def _is_status(told: Any) -> bool:
    return isinstance(told, str) and told.lower() in (*_SUCCESS, *_FAILURE)


def _numbers(value: Any) -> list[float]:
    """Returns the numbers in a number, a list of these, or a text of nothing else. Raises ActionError."""
    if isinstance(value, list):
        return [number for part in value for number in _numbers(part)]
    if isinstance(value, str):
        return _numbers_in(value)
    if isinstance(value, bool) or not isinstance(value, float):
        raise ActionError(f"{value!r:.100} is no number")
    return [value]
