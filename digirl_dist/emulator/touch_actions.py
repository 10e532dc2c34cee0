"""The vocabulary of touch-screen actions that all device emulators share, as JSON objects.

{"type": "tap", "x": 0.5, "y": 0.25}                                   coordinates are shares of width and height
{"type": "swipe", "x": 0.5, "y": 0.8, "to_x": 0.5, "to_y": 0.2}        scrolls where it can
{"type": "drag", "x": 0.2, "y": 0.8, "to_x": 0.6, "to_y": 0.2}         holds what lies at the first point
{"type": "select", "x": 0.5, "y": 0.25}                                marks the text there
{"type": "type", "text": "hello"}
{"type": "type_at", "x": 0.5, "y": 0.25, "text": "hello"}              a tap and typing; agents' wrappers take it apart
{"type": "back"}  {"type": "home"}  {"type": "enter"}
{"type": "wait"}                                                       look again without touching anything
{"type": "done"}  {"type": "impossible"}                               end the episode, in one opinion or the other
{"type": "done", "text": "42 km"}                                      … with the answer to what was asked

An action may carry remarks of the agent, which no device looks at: ``said``, what a language model wrote, ``tokens``,
the tokens that it wrote it in, and ``unread``, why no action could be read in it, which is why the device waits.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from digirl_dist.errors import ActionError
from digirl_dist.types import Json

SAID, TOKENS, UNREAD = "said", "tokens", "unread"


@dataclass(frozen=True)
class DeviceAction:
    """A checked device action. Coordinates lie in [0, 1]: (0, 0) is the top left corner."""

    type: str
    x: float = 0.0
    y: float = 0.0
    to_x: float = 0.0
    to_y: float = 0.0
    text: str = ""

    FIELDS: ClassVar[dict[str, tuple[str, ...]]] = {
        "tap": ("x", "y"),
        "swipe": ("x", "y", "to_x", "to_y"),
        "drag": ("x", "y", "to_x", "to_y"),
        "select": ("x", "y"),
        "type": ("text",),
        "type_at": ("x", "y", "text"),
        "back": (),
        "home": (),
        "enter": (),
        "wait": (),
        "done": (),
        "impossible": (),
    }

    @property
    def ends(self) -> bool:
        """Whether the agent ends the episode with it."""
        return self.type in ("done", "impossible")

    @property
    def parts(self) -> list[DeviceAction]:
        """The actions that a device knows: a tap and typing instead of typing at a point."""
        if self.type != "type_at":
            return [self]
        return [DeviceAction("tap", self.x, self.y), DeviceAction("type", text=self.text)]

    def to_json(self) -> dict[str, Json]:
        answer = ("text",) if self.type == "done" and self.text else ()
        return {"type": self.type, **{name: getattr(self, name) for name in (*self.FIELDS[self.type], *answer)}}

    @classmethod
    def from_json(cls, value: Json) -> DeviceAction:
        """Remarks are left out. Raises ActionError naming what is wrong with ``value``."""
        value = without_remarks(value)
        if not isinstance(value, dict) or value.get("type") not in list(cls.FIELDS):  # it may be a list, without a hash
            raise ActionError(f"{value!r} is not a device action; the types are {', '.join(cls.FIELDS)}")
        answer = ("text",) if value["type"] == "done" and "text" in value else ()
        fields = (*cls.FIELDS[value["type"]], *answer)
        if set(value) != {"type", *fields}:
            raise ActionError(f"{value!r}: a {value['type']} has exactly the fields {('type', *fields)}")
        for name in fields:
            if name == "text":
                if not isinstance(value[name], str):
                    raise ActionError(f"{value!r}: text must be a string")
            elif isinstance(value[name], bool) or not isinstance(value[name], int | float):
                raise ActionError(f"{value!r}: {name} must be a number")
            elif not 0 <= value[name] <= 1:
                raise ActionError(f"{value!r}: {name} must lie in [0, 1]")
        return cls(**value)


def without_remarks(action: Json) -> Json:
    """The action as the device needs it; anything that is no JSON object stays as it is."""
    if not isinstance(action, dict):
        return action
    return {name: value for name, value in action.items() if name not in (SAID, TOKENS, UNREAD)}
