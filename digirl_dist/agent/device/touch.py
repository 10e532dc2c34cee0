"""The choices of a policy that acts on touch screens, and the JSON actions that they stand for."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

from digirl_dist.emulator.touch_actions import DeviceAction
from digirl_dist.errors import ActionError, SettingsError
from digirl_dist.types import Json


@dataclass(frozen=True)
class Kind:
    """A kind of action: what it stands for, without its place and its text, and how often it is tried untrained."""

    action: DeviceAction
    prior: float
    part: int | None = None
    """Which quoted part of the instruction it types, if any."""

    @property
    def name(self) -> str:
        """What people call it."""
        if self.action.type != "swipe":
            return self.action.type.replace("_", " ") + ("" if not self.part else f", part {self.part + 1}")
        across, up = self.action.to_x - self.action.x, self.action.y - self.action.to_y
        return f"swipe {'up' if up > 0 else 'down'}" if up else f"swipe {'right' if across > 0 else 'left'}"

    @property
    def placed(self) -> bool:
        """Whether a cell of the touch grid belongs to it."""
        return self.action.type in ("tap", "type_at")


KINDS = (
    Kind(DeviceAction("tap"), 0.50),
    *(Kind(DeviceAction(name), prior, part) for name in ("type", "type_at") for part, prior in enumerate((0.2, 0.1))),
    Kind(DeviceAction("enter"), 0.10),
    Kind(DeviceAction("back"), 0.05),
    Kind(DeviceAction("home"), 0.02),
    Kind(DeviceAction("done"), 0.02),
    Kind(DeviceAction("swipe", 0.5, 0.75, 0.5, 0.25), 0.05),
    Kind(DeviceAction("swipe", 0.5, 0.25, 0.5, 0.75), 0.02),
    Kind(DeviceAction("swipe", 0.8, 0.5, 0.2, 0.5), 0.05),
    Kind(DeviceAction("swipe", 0.2, 0.5, 0.8, 0.5), 0.02),
)
"""All there are. The priors are shares of what is possible: mostly taps, as with people, and typing where there is a
text to type."""


def kinds_of(types: Sequence[str]) -> tuple[Kind, ...]:
    """The kinds of these types of action, taps first. Raises SettingsError for a type that no kind has."""
    known = {kind.action.type for kind in KINDS}
    if wrong := [name for name in types if name not in known]:
        raise SettingsError(f"the device agent knows no action {wrong[0]!r}; there are {', '.join(sorted(known))}")
    if "tap" not in types:
        raise SettingsError("the device agent cannot do without the action tap")
    return tuple(kind for kind in KINDS if kind.action.type in types)


@dataclass(frozen=True)
class Choice:
    """The index of a kind of action and the cell of the touch grid (counted row by row; 0 for kinds without place)."""

    kind: int
    cell: int = 0


@dataclass(frozen=True)
class TouchGrid:
    """The screen divided into ``rows`` x ``columns`` cells, of which an action that has a place takes the middle."""

    rows: int
    columns: int
    kinds: tuple[Kind, ...] = KINDS

    @property
    def cells(self) -> int:
        return self.rows * self.columns

    def by_rows(self, values: Sequence[float]) -> list[list[float]]:
        """Returns one value per cell as rows from the top, each from the left."""
        return [list(values[first : first + self.columns]) for first in range(0, self.cells, self.columns)]

    def action(self, choice: Choice, texts: Sequence[str]) -> Json:
        """The JSON action; ``texts`` are the instruction's quoted parts."""
        kind = self.kinds[choice.kind]
        row, column = divmod(choice.cell, self.columns)
        found = kind.action
        if kind.placed:
            found = replace(found, x=(column + 0.5) / self.columns, y=(row + 0.5) / self.rows)
        return (found if kind.part is None else replace(found, text=texts[kind.part])).to_json()

    def kind(self, action: DeviceAction) -> int | None:
        """The index of the first kind of an action, whatever its place and text; None if it has none here."""
        for index, kind in enumerate(self.kinds):
            if kind.action.type == action.type and (action.type != "swipe" or kind.action == action):
                return index
        return None

    def choice(self, action: Json, texts: Sequence[str]) -> Choice:
        """The inverse of ``action``. A place counts for the cell it is in.

        Raises ActionError for an action that no choice stands for: another text, or a swipe from elsewhere.
        """
        wanted = DeviceAction.from_json(action)
        for index, kind in enumerate(self.kinds):
            if self._stands_for(kind, wanted, texts):
                return Choice(index, self._cell(wanted) if kind.placed else 0)
        raise ActionError(f"{action!r} is not one of the actions that this policy chooses from")

    def _stands_for(self, kind: Kind, action: DeviceAction, texts: Sequence[str]) -> bool:
        if kind.part is not None and action.text not in texts[kind.part : kind.part + 1]:
            return False
        bare = replace(action, text="")
        return (replace(bare, x=0.0, y=0.0) if kind.placed else bare) == kind.action

    def _cell(self, action: DeviceAction) -> int:
        row, column = int(action.y * self.rows), int(action.x * self.columns)
        return min(row, self.rows - 1) * self.columns + min(column, self.columns - 1)
