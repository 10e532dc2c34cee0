"""The choices of a policy that acts on touch screens, and the JSON actions that they stand for."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace

from digirl_dist.emulator import Label
from digirl_dist.emulator.touch_actions import DeviceAction
from digirl_dist.errors import ActionError, SettingsError
from digirl_dist.types import Json

Point = tuple[float, float]
"""Right and down, in shares of the screen."""
_ALIKE_ALL_OVER = frozenset(
    {
        *("button", "checkbox", "link", "menuitem", "menuitemcheckbox", "menuitemradio"),
        *("option", "radio", "switch", "tab", "treeitem"),
    }
)
"""Roles of what does the same wherever it is touched; a slider does not."""


@dataclass(frozen=True)
class Kind:
    """A kind of action: what it stands for, without its places and its text, and how often it is tried untrained.

    A swipe from a place goes ``down`` from there by this share of the screen, up if that is below 0.
    """

    action: DeviceAction
    prior: float
    down: float = 0.0

    @property
    def name(self) -> str:
        """What people call it."""
        if self.action.type != "swipe":
            return self.action.type.replace("_", " ")
        if self.down:
            return f"swipe {'down' if self.down > 0 else 'up'} from a place"
        across, up = self.action.to_x - self.action.x, self.action.y - self.action.to_y
        return f"swipe {'up' if up > 0 else 'down'}" if up else f"swipe {'right' if across > 0 else 'left'}"

    @property
    def placed(self) -> bool:
        """Whether a place belongs to it."""
        return self.action.type in ("tap", "type_at", "drag", "select") or self.down != 0

    @property
    def types(self) -> bool:
        """Whether a text belongs to it."""
        return self.action.type in ("type", "type_at")

    @property
    def drags(self) -> bool:
        """Whether a second place belongs to it."""
        return self.action.type == "drag"

    def at(self, point: Point) -> DeviceAction:
        """What it stands for at a place."""
        begun = replace(self.action, x=point[0], y=point[1])
        return replace(begun, to_x=begun.x, to_y=min(max(begun.y + self.down, 0.0), 1.0)) if self.down else begun

    def is_of(self, action: DeviceAction) -> bool:
        """Whether an action is of this kind, whatever its places and text."""
        if action.type != "swipe" or self.action.type != "swipe":
            return action.type == self.action.type
        return action == (self.at((action.x, action.y)) if self.down else self.action)


KINDS = (
    Kind(DeviceAction("tap"), 0.50),
    Kind(DeviceAction("type"), 0.2),
    Kind(DeviceAction("type_at"), 0.2),
    Kind(DeviceAction("enter"), 0.10),
    Kind(DeviceAction("back"), 0.05),
    Kind(DeviceAction("home"), 0.02),
    Kind(DeviceAction("done"), 0.02),
    Kind(DeviceAction("swipe", 0.5, 0.75, 0.5, 0.25), 0.05),
    Kind(DeviceAction("swipe", 0.5, 0.25, 0.5, 0.75), 0.02),
    Kind(DeviceAction("swipe", 0.8, 0.5, 0.2, 0.5), 0.05),
    Kind(DeviceAction("swipe", 0.2, 0.5, 0.8, 0.5), 0.02),
    Kind(DeviceAction("drag"), 0.06),
    Kind(DeviceAction("select"), 0.03),
    Kind(DeviceAction("swipe"), 0.05, down=-0.45),
    Kind(DeviceAction("swipe"), 0.02, down=0.45),
)
"""All there are. The priors are shares of what is possible: mostly taps, as with people, and typing where there is a
text to type."""


def kinds_of(types: Sequence[str], reads: bool = False) -> tuple[Kind, ...]:
    """The kinds of these types of action, taps first; swipes from a place only for who ``reads`` what lies there.

    Raises SettingsError for a type that no kind has.
    """
    known = {kind.action.type for kind in KINDS}
    if wrong := [name for name in types if name not in known]:
        raise SettingsError(f"the device agent knows no action {wrong[0]!r}; there are {', '.join(sorted(known))}")
    if "tap" not in types:
        raise SettingsError("the device agent cannot do without the action tap")
    return tuple(kind for kind in KINDS if kind.action.type in types and (reads or not kind.down))


@dataclass(frozen=True)
class Choice:
    """The index of a kind of action, its place and what else belongs to it, 0 where none does.

    Places are the cells of the touch grid, row by row, and then the labels. ``second`` is the place where a drag ends,
    or the index of the text that is typed.
    """

    kind: int
    place: int = 0
    second: int = 0


@dataclass(frozen=True)
class TouchGrid:
    """The screen divided into ``rows`` x ``columns`` cells. Actions take the middle of a cell or of a label; drags to a
    label end a little further on."""

    rows: int
    columns: int
    kinds: tuple[Kind, ...] = KINDS

    @property
    def cells(self) -> int:
        return self.rows * self.columns

    def by_rows(self, values: Sequence[float]) -> list[list[float]]:
        """Returns one value per cell as rows from the top, each from the left."""
        return [list(values[first : first + self.columns]) for first in range(0, self.cells, self.columns)]

    def points(self, labels: Sequence[Label]) -> list[Point]:
        """Where all places are: the cells, then the labels."""
        middles = [(place % self.columns, place // self.columns) for place in range(self.cells)]
        return [((x + 0.5) / self.columns, (y + 0.5) / self.rows) for x, y in middles] + [
            each.middle for each in labels
        ]

    def cell(self, point: Point) -> int:
        """The cell that a point is in."""
        row, column = int(point[1] * self.rows), int(point[0] * self.columns)
        return min(max(row, 0), self.rows - 1) * self.columns + min(max(column, 0), self.columns - 1)

    def action(self, choice: Choice, texts: Sequence[str], labels: Sequence[Label] = ()) -> Json:
        """The JSON action; ``texts`` are those that can be typed."""
        kind, points = self.kinds[choice.kind], self.points(labels)
        found = kind.at(points[choice.place]) if kind.placed else kind.action
        if kind.drags:
            end = (
                points[choice.second]
                if choice.second < self.cells
                else beyond(labels[choice.second - self.cells], (found.x, found.y))
            )
            found = replace(found, to_x=end[0], to_y=end[1])
        return (replace(found, text=texts[choice.second]) if kind.types else found).to_json()

    def kind(self, action: DeviceAction) -> int | None:
        """The index of the first kind of an action, whatever its places and text; None if it has none here."""
        return next((index for index, kind in enumerate(self.kinds) if kind.is_of(action)), None)

    def choice(self, action: Json, texts: Sequence[str], labels: Sequence[Label] = ()) -> Choice:
        """The inverse of ``action``. A point that it takes of no label counts for the cell that it is in, or for what
        stands for that.

        Raises ActionError for an action that no choice stands for: another text, or a swipe from elsewhere.
        """
        wanted = DeviceAction.from_json(action)
        index = self.kind(wanted)
        if index is None or (self.kinds[index].types and wanted.text not in texts):
            raise ActionError(f"{action!r} is not one of the actions that this policy chooses from")
        kind = self.kinds[index]
        start, end = (wanted.x, wanted.y), (wanted.to_x, wanted.to_y)
        place = self._place(start, labels, [label.middle for label in labels]) if kind.placed else 0
        if kind.types:
            return Choice(index, place, texts.index(wanted.text))
        return Choice(
            index, place, self._place(end, labels, [beyond(each, start) for each in labels]) if kind.drags else 0
        )

    def _place(self, point: Point, labels: Sequence[Label], points: Sequence[Point]) -> int:
        """``points``: where an action takes each of the labels."""
        for index, own in enumerate(points):
            if all(abs(one - other) < _SAME for one, other in zip(own, point, strict=True)):
                return self.cells + index
        cell = self.cell(point)
        owner = self.owners(labels).get(cell)
        return cell if owner is None else self._place(points[owner], labels, points)

    def owners(self, labels: Sequence[Label]) -> dict[int, int]:
        """Returns the cells that cannot be chosen, with the label that stands for each.

        To touch the middle of the cell is to touch the label: its own middle, or a control that it lies in.
        """
        found: dict[int, int] = {}
        for index, label in enumerate(labels):
            x, y = label.middle
            box = (label.left, label.top, label.right, label.bottom) if label.role in _ALIKE_ALL_OVER else (x, y, x, y)
            columns = _within(box[0], box[2], self.columns)
            for row in _within(box[1], box[3], self.rows):
                found.update((row * self.columns + column, index) for column in columns)
        return found


def _within(begin: float, end: float, count: int) -> range:
    """Which of ``count`` equal parts of the screen have their middle between two shares of it, or at them."""
    first, last = (min(max(share, 0.0), 1.0) * count - 0.5 for share in (begin, end))
    return range(math.ceil(first - _SAME), math.floor(last + _SAME) + 1)


_SAME = 1e-9


def beyond(label: Label, start: Point) -> Point:
    """Where a drag from a point ends on a label: a quarter of it beyond its middle, where lists that are sorted by hand
    make room. Dropped at the very middle, a thing returns to where it was."""
    (x, y), (across, down) = label.middle, ((label.right - label.left) / 4, (label.bottom - label.top) / 4)
    return x + min(max(x - start[0], -across), across), y + min(max(y - start[1], -down), down)
