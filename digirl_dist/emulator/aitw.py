"""AndroidInTheWild's action format and the text form that AutoUI reads and writes, to and from device actions.

The format is that of the data set (Rawles et al. 2023, "Android in the Wild", arXiv 2307.10088, section 3.3); the text
form that of AutoUI (Zhang and Zhang 2023, "You Only Look at Screens", arXiv 2309.11436), which DigiRL shares.
"""

from __future__ import annotations

import json
import re
from collections.abc import Sequence
from contextlib import suppress
from enum import IntEnum
from typing import NamedTuple

from digirl_dist.emulator.touch_actions import DeviceAction
from digirl_dist.errors import ActionError

Point = tuple[float, float]
"""(y, x) in shares of height and width, as the data set has it."""

PROMPT_BEGINS = "Previous Actions:"
DECISION = "Action Decision:"
"""Stands before the action in an answer."""

NOWHERE: Point = (-1.0, -1.0)
"""Stands in actions that touch nothing."""


class ActionType(IntEnum):
    """``results/action_type`` of the data set. It leaves 0 unused, which DigiRL uses for doing nothing."""

    IDLE = 0
    TYPE = 3
    DUAL_POINT = 4
    PRESS_BACK = 5
    PRESS_HOME = 6
    PRESS_ENTER = 7
    STATUS_TASK_COMPLETE = 10
    STATUS_TASK_IMPOSSIBLE = 11


class AitwAction(NamedTuple):
    """``results/action_type``, ``results/yx_touch``, ``results/yx_lift`` and ``results/type_action``."""

    action_type: ActionType
    yx_touch: Point = NOWHERE
    yx_lift: Point = NOWHERE
    text: str = ""


_PLAIN = {
    ActionType.IDLE: "wait",
    ActionType.PRESS_BACK: "back",
    ActionType.PRESS_HOME: "home",
    ActionType.PRESS_ENTER: "enter",
    ActionType.STATUS_TASK_COMPLETE: "done",
    ActionType.STATUS_TASK_IMPOSSIBLE: "impossible",
}
_PLAIN_TYPES = {name: kind for kind, name in _PLAIN.items()}


def to_aitw(action: DeviceAction) -> AitwAction:
    """Returns the action in the format, as far as it goes.

    The inverse of ``from_aitw`` except for swipes that end where they began, which the format calls taps, and for what
    it does not have: the point at which something is typed, drags (swipes there) and selections (taps).
    """
    if action.type in ("type", "type_at"):
        return AitwAction(ActionType.TYPE, text=action.text)
    if action.type in ("tap", "select"):
        return AitwAction(ActionType.DUAL_POINT, (action.y, action.x), (action.y, action.x))
    if action.type in ("swipe", "drag"):
        return AitwAction(ActionType.DUAL_POINT, (action.y, action.x), (action.to_y, action.to_x))
    return AitwAction(_PLAIN_TYPES[action.type])


def from_aitw(action: AitwAction) -> DeviceAction:
    """Equal touch and lift points are a tap, others a swipe, however short (see ``android/device.py``).

    Raises ActionError for points outside the screen.
    """
    if action.action_type is ActionType.TYPE:
        return DeviceAction.from_json({"type": "type", "text": action.text})
    if action.action_type is ActionType.DUAL_POINT:
        (y, x), (to_y, to_x) = action.yx_touch, action.yx_lift
        if (y, x) == (to_y, to_x):
            return DeviceAction.from_json({"type": "tap", "x": x, "y": y})
        return DeviceAction.from_json({"type": "swipe", "x": x, "y": y, "to_x": to_x, "to_y": to_y})
    return DeviceAction(_PLAIN[action.action_type])


# --- the text form -------------------------------------------------------------------------------------------------


def to_autoui(action: DeviceAction) -> str:
    """As AutoUI writes it, with four decimals; with more where the action has more, so that nothing is lost.

    Quotes, backslashes and line breaks in typed text are escaped as in JSON.
    """
    aitw = to_aitw(action)
    fields = {
        "action_type": aitw.action_type.name,
        "touch_point": _point_text(aitw.yx_touch),
        "lift_point": _point_text(aitw.yx_lift),
        "typed_text": aitw.text,
    }
    return json.dumps(fields, ensure_ascii=False)[1:-1]


def to_prompt(goal: str, history: Sequence[DeviceAction]) -> str:
    """What AutoUI is asked: the actions before, oldest first, of which waiting is none, and the goal.

    The form is DigiRL's (``autoui_prepare_prompt`` in github.com/DigiRL-agent/digirl), end mark included.
    """
    actions = "".join(f"{to_autoui(action)} " for action in history if action.type != "wait")
    return f"{PROMPT_BEGINS} {actions}Goal: {goal}</s>"


def from_autoui(text: str) -> DeviceAction:
    """Reads exactly what ``to_autoui`` writes. Raises ActionError for anything else; see ``read_autoui``."""
    try:
        fields = json.loads(f"{{{text}}}")
        kind, text_typed = ActionType[fields["action_type"]], str(fields["typed_text"])
        points = [_read_point(fields[name]) for name in ("touch_point", "lift_point")]
    except (ValueError, KeyError, TypeError, OverflowError, RecursionError) as error:
        raise ActionError(f"{text[:200]!r} is not an action in AutoUI's form: {error}") from error
    return from_aitw(AitwAction(kind, points[0], points[1], text_typed))


def read_autoui(text: str) -> DeviceAction:
    """Returns the action that a model wrote. Raises ActionError for what cannot be understood.

    Text before ``Action Decision:`` (AutoUI's plan) is skipped. Missing or doubled quotes, brackets and commas, other
    order, missing fields that the action does not need, and DigiRL's short names of the status actions are accepted.
    """
    decision = text.rpartition(DECISION)[2].strip()
    for part in (text, decision):
        with suppress(ActionError):
            return from_autoui(part)
    return _read_leniently(decision)


_NUMBER = r"(-?\d{0,9}\.?\d{1,20})"
_KIND = re.compile(r"action_?type\W{0,8}([a-z_]{3,40})", re.IGNORECASE)
_TOUCH, _LIFT = (
    re.compile(name + r"_?point\W{0,8}?" + _NUMBER + r"[\s,]{1,4}" + _NUMBER, re.IGNORECASE)
    for name in ("touch", "lift")
)
_TYPED = re.compile(r'typed_?text["\s]{0,4}:\s{0,4}(.*)', re.IGNORECASE | re.DOTALL)
_SHORT_NAMES = {
    "TASK_COMPLETE": ActionType.STATUS_TASK_COMPLETE,
    "TASK_IMPOSSIBLE": ActionType.STATUS_TASK_IMPOSSIBLE,
}


def _read_leniently(text: str) -> DeviceAction:
    """Looks for each field by itself. Raises ActionError when one that is needed cannot be found."""
    found = _KIND.search(text)
    name = found[1].upper() if found else ""
    kind = _SHORT_NAMES.get(name) or ActionType.__members__.get(name)
    if kind is None:
        raise ActionError(f"{text[:200]!r} names no action type")
    typed = _TYPED.search(text)
    if kind is ActionType.TYPE and typed is None:
        raise ActionError(f"{text[:200]!r} types nothing")
    touch, lift = _TOUCH.search(text), _LIFT.search(text)
    start = _matched_point(touch)
    end = start if lift is None else _matched_point(lift)
    return from_aitw(AitwAction(kind, start, end, _unquoted(typed[1]) if typed else ""))


def _matched_point(found: re.Match[str] | None) -> Point:
    return NOWHERE if found is None else (float(found[1]), float(found[2]))


def _unquoted(text: str) -> str:
    """The text without the quotes around it, of which any may be missing; escapes are read where they are sound."""
    inner = text.strip().removesuffix("}").strip().removeprefix('"').removesuffix('"')
    try:
        return str(json.loads(f'"{inner}"'))
    except ValueError:
        return inner


def _point_text(point: Point) -> str:
    return "[-1.0, -1.0]" if point == NOWHERE else f"[{_number_text(point[0])}, {_number_text(point[1])}]"


def _number_text(value: float) -> str:
    short = f"{value:.4f}"
    return short if float(short) == value else repr(float(value))


def _read_point(text: str) -> Point:
    """``text`` is ``[y, x]``. Raises ValueError, TypeError or KeyError."""
    y, x = json.loads(text)
    return float(y), float(x)
