"""The choices of a policy that acts on touch screens, and the JSON actions that they stand for."""

from __future__ import annotations

from dataclasses import dataclass

from digirl_dist.emulator.touch_actions import DeviceAction
from digirl_dist.errors import ActionError
from digirl_dist.types import Json

TAP, TYPE = 0, 1

_FIXED: tuple[DeviceAction, ...] = (
    DeviceAction("enter"),
    DeviceAction("back"),
    DeviceAction("home"),
    DeviceAction("done"),
    DeviceAction("swipe", 0.5, 0.75, 0.5, 0.25),
    DeviceAction("swipe", 0.5, 0.25, 0.5, 0.75),
    DeviceAction("swipe", 0.8, 0.5, 0.2, 0.5),
    DeviceAction("swipe", 0.2, 0.5, 0.8, 0.5),
)

KINDS = 2 + len(_FIXED)
"""Kinds of action: 0 tap, 1 type the quoted text, then enter, back, home, done, and swipes up, down, left, right."""

PRIOR = (0.50, 0.12, 0.08, 0.08, 0.08, 0.02, 0.02, 0.02, 0.06, 0.02)
"""How an untrained policy divides its attempts among the kinds: mostly taps, as people do."""


@dataclass(frozen=True)
class Choice:
    """A kind of action and, for a tap, the cell of the touch grid (counted row by row; 0 for all other kinds)."""

    kind: int
    cell: int = 0


@dataclass(frozen=True)
class TouchGrid:
    """The screen divided into ``rows`` x ``columns`` cells; a tap goes to the middle of one."""

    rows: int
    columns: int

    @property
    def cells(self) -> int:
        return self.rows * self.columns

    def action(self, choice: Choice, text: str | None) -> Json:
        """The JSON action; ``text`` is what TYPE types."""
        if choice.kind == TAP:
            row, column = divmod(choice.cell, self.columns)
            return DeviceAction("tap", (column + 0.5) / self.columns, (row + 0.5) / self.rows).to_json()
        if choice.kind == TYPE:
            assert text is not None
            return DeviceAction("type", text=text).to_json()
        return _FIXED[choice.kind - 2].to_json()

    def choice(self, action: Json, text: str | None) -> Choice:
        """The inverse of ``action``. A tap anywhere counts for the cell it is in.

        Raises ActionError for an action that no choice stands for: another text, or a swipe from elsewhere.
        """
        wanted = DeviceAction.from_json(action)
        if wanted.type == "tap":
            row, column = int(wanted.y * self.rows), int(wanted.x * self.columns)
            return Choice(TAP, min(row, self.rows - 1) * self.columns + min(column, self.columns - 1))
        if wanted.type == "type" and wanted.text == text:
            return Choice(TYPE)
        if wanted in _FIXED:
            return Choice(2 + _FIXED.index(wanted))
        raise ActionError(f"{action!r} is not one of the actions that this policy chooses from")
