"""The vocabulary of touch-screen actions that all device emulators share, as JSON objects.

{"type": "tap", "x": 0.5, "y": 0.25}                                   coordinates are shares of width and height
{"type": "swipe", "x": 0.5, "y": 0.8, "to_x": 0.5, "to_y": 0.2}
{"type": "type", "text": "hello"}
{"type": "back"}  {"type": "home"}  {"type": "enter"}
{"type": "wait"}                                                       look again without touching anything
{"type": "done"}  {"type": "impossible"}                               end the episode, in one opinion or the other

An agent that answers in tokens leaves these beside, as {"type": "back", "tokens": [37, 2, 1]}, to learn from them later;
devices do not look at them.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from digirl_dist.errors import ActionError
from digirl_dist.tasks import Json

TOKENS = "tokens"


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
        "type": ("text",),
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

    def to_json(self) -> dict[str, Json]:
        return {"type": self.type, **{name: getattr(self, name) for name in self.FIELDS[self.type]}}

    @classmethod
    def from_json(cls, value: Json) -> DeviceAction:
        """Raises ActionError naming what is wrong with ``value``."""
        value = without_tokens(value)
        if not isinstance(value, dict) or value.get("type") not in cls.FIELDS:
            raise ActionError(f"{value!r} is not a device action; the types are {', '.join(cls.FIELDS)}")
        fields = cls.FIELDS[value["type"]]
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


def without_tokens(action: Json) -> Json:
    """What is done, without the tokens in which the agent said it."""
    return {name: part for name, part in action.items() if name != TOKENS} if isinstance(action, dict) else action
