"""What a chat model is asked at each step. Its answers are read by ``answers``."""

from __future__ import annotations

import json
from collections.abc import Sequence

from digirl_dist.chat import Messages, text_part
from digirl_dist.emulator.touch_actions import DeviceAction
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
