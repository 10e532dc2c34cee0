"""What the policy sees beside the screenshot, as planes that move with it.

Traces of its latest actions; and where the screen shows what the instruction names, whose labels are compared with it
word by word.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
import torch

from digirl_dist.agent.device.touch import TouchGrid
from digirl_dist.emulator import Label
from digirl_dist.emulator.remembered import Memory
from digirl_dist.types import Json

TRACE_PLANES = 2
_WORD = re.compile(r"\w+")
_FADE = 0.7
"""How much weaker a trace is than that of the action after it."""

Shift = tuple[float, float]
"""Down and right, in shares of the picture."""


class Traces(NamedTuple):
    """The memories of B observations."""

    planes: torch.Tensor
    """[B, TRACE_PLANES, rows, columns]: where it touched lately, and where on the very screen that is seen."""
    latest: torch.Tensor
    """[B, K]: the kind of the latest action."""
    here: torch.Tensor
    """[B, K]: the kinds of all actions on the very screen that is seen."""

    def to(self, device: torch.device) -> Traces:
        return Traces(*(part.to(device) for part in self))


def traces(memories: Sequence[Sequence[Memory]], grid: TouchGrid, shifts: Sequence[Shift] | None = None) -> Traces:
    """Of each observation's memories, oldest first; on pictures that were moved by ``shifts`` they move along."""
    count, kinds = len(memories), len(grid.kinds)
    planes = np.zeros((count, TRACE_PLANES, grid.rows, grid.columns), np.float32)
    latest, here = np.zeros((count, kinds), np.float32), np.zeros((count, kinds), np.float32)
    for row, known in enumerate(memories):
        for age, memory in enumerate(reversed(known)):
            kind = grid.kind(memory.action)
            if kind is None:
                continue
            here[row, kind] = max(here[row, kind], memory.here)
            latest[row, kind] = max(latest[row, kind], age == 0)
            if grid.kinds[kind].placed:
                spot = _spot(memory, grid, shifts[row] if shifts else (0.0, 0.0))
                planes[row, 0] = np.maximum(planes[row, 0], _FADE**age * spot)
                planes[row, 1] = np.maximum(planes[row, 1], memory.here * spot)
    return Traces(torch.from_numpy(planes), torch.from_numpy(latest), torch.from_numpy(here))


def _spot(memory: Memory, grid: TouchGrid, shift: Shift) -> np.ndarray:
    """A round spot of height 1 and a deviation of one cell, shape [rows, columns]."""
    down = np.arange(grid.rows) + 0.5 - (memory.action.y + shift[0]) * grid.rows
    right = np.arange(grid.columns) + 0.5 - (memory.action.x + shift[1]) * grid.columns
    return np.asarray(np.exp(-(down[:, None] ** 2 + right**2) / 2))


NAME_PLANES = 4
SHARED, NEXT, EDITABLE = 1, 2, 3
"""Planes where an untrained policy looks: what shares words with the instruction, what that names next, text fields."""

_EDITABLE = frozenset({"textbox", "searchbox", "combobox", "spinbutton"})
_AROUND = " .,;:!?"
_OTHER_CASE = 0.5
"""How well a name is named that the instruction has in other letters, "OK" for "ok"."""


def named_places(
    instructions: Sequence[str],
    labels: Sequence[Sequence[Label]],
    memories: Sequence[Sequence[Memory]],
    grid: TouchGrid,
    shifts: Sequence[Shift] | None = None,
) -> torch.Tensor:
    """Returns [B, NAME_PLANES, rows, columns] of B observations; ``shifts`` move with the pictures.

    Each value is that of the best label in its cell, from 0 to 1: whether the instruction has its name, in the same
    letters or others; which share of the words of its name and role the instruction has; whether it is the one that
    the instruction names first, and best, of those that were not touched yet, as far as ``memories`` reach; whether
    text can be entered there.
    """
    planes = np.zeros((len(labels), NAME_PLANES, grid.rows, grid.columns), np.float32)
    for row, (instruction, known, done) in enumerate(zip(instructions, labels, memories, strict=True)):
        down, right = shifts[row] if shifts else (0.0, 0.0)
        for label, values in zip(known, _compared(instruction, known, done), strict=True):
            cells = _cells(label.top + down, label.bottom + down, grid.rows)
            across = _cells(label.left + right, label.right + right, grid.columns)
            part = planes[row, :, cells, across]
            np.maximum(part, values[:, None, None], out=part)
    return torch.from_numpy(planes)


def aimed(
    instruction: str, labels: Sequence[Label], memories: Sequence[Memory], grid: TouchGrid, cell: int
) -> tuple[float, float] | None:
    """Returns the point of a cell, in shares of the screen, that touches what the instruction names next.

    None if that does not lie in the cell. A line of text is lower than a cell, so the cell's middle may miss it.
    """
    row, column = divmod(cell, grid.columns)
    for label, values in zip(labels, _compared(instruction, labels, memories), strict=True):
        left, right = max(label.left, column / grid.columns), min(label.right, (column + 1) / grid.columns)
        top, bottom = max(label.top, row / grid.rows), min(label.bottom, (row + 1) / grid.rows)
        if values[NEXT] and left < right and top < bottom:
            return (left + right) / 2, (top + bottom) / 2
    return None


def words_of(text: str) -> list[str]:
    """Returns the words of ``text`` in lower case."""
    return _WORD.findall(text.lower())


def _compared(instruction: str, labels: Sequence[Label], memories: Sequence[Memory]) -> list[np.ndarray]:
    """Returns the values of the planes for each label, shape [NAME_PLANES]."""
    named = [_place(label.name, instruction) for label in labels]
    ranks = [
        None if place is None or _touched(label, memories) else (place, -likeness, -len(label.name))
        for label, (place, likeness) in zip(labels, named, strict=True)
    ]
    following = min((rank for rank in ranks if rank is not None), default=())
    words = set(words_of(instruction))
    values = []
    for label, rank, (_, likeness) in zip(labels, ranks, named, strict=True):
        own = words_of(f"{label.role} {label.name}")
        shared = sum(word in words for word in own) / max(1, len(own))
        values.append(np.array([likeness, shared, rank == following, label.role in _EDITABLE], np.float32))
    return values


def _touched(label: Label, memories: Sequence[Memory]) -> bool:
    taps = [each.action for each in memories if each.action.type == "tap"]
    return any(label.left <= tap.x < label.right and label.top <= tap.y < label.bottom for tap in taps)


def _place(name: str, instruction: str) -> tuple[int | None, float]:
    """Returns where the instruction has the name as whole words, and how alike they are."""
    if not (bare := name.strip(_AROUND)):
        return None, 0.0
    whole = rf"(?<!\w){re.escape(bare)}(?!\w)"
    if same := re.search(whole, instruction):
        return same.start(), 1.0
    alike = re.search(whole, instruction, re.IGNORECASE)
    return (alike.start(), _OTHER_CASE) if alike else (None, 0.0)


def _cells(first: float, last: float, count: int) -> slice:
    """Returns the cells whose middle lies between two shares of the screen, or else the one in the middle of these."""
    begin, end = (int(np.ceil(place * count - 0.5)) for place in (first, last))
    if end <= begin:
        begin = int((first + last) / 2 * count)
        end = begin + 1
    return slice(max(0, begin), max(0, end))


_PLACED = ("tap", "type_at")


def shifted(
    pictures: torch.Tensor, actions: Sequence[Json], most: int
) -> tuple[torch.Tensor, list[Json], list[tuple[float, float]]]:
    """Each of B pictures [B, 3, H, W] moved by up to ``most`` pixels down or up and right or left, the tap with it.

    The third part of the answer is how far each moved down and right, in shares of its size. Edges are repeated. The
    shift of a picture is cut so that its tap stays inside. Random numbers are torch's own.
    Source: the random shifts of DrQ (Kostrikov et al. 2020, arXiv 2004.13649, section 3.1).
    """
    count, _, height, width = pictures.shape
    wanted = torch.randint(-most, most + 1, (count, 2)).tolist()
    pairs = zip(actions, wanted, strict=True)
    shifts = [_inside(action, down, right, height, width) for action, (down, right) in pairs]
    down, right = torch.tensor(shifts).unbind(dim=1)
    rows = (torch.arange(height) - down[:, None]).clamp(0, height - 1)
    columns = (torch.arange(width) - right[:, None]).clamp(0, width - 1)
    moved = pictures[torch.arange(count)[:, None, None], :, rows[:, :, None], columns[:, None, :]]
    taps = [_moved(action, *shift, height, width) for action, shift in zip(actions, shifts, strict=True)]
    return moved.permute(0, 3, 1, 2), taps, [(down / height, right / width) for down, right in shifts]


def _inside(action: Json, down: int, right: int, height: int, width: int) -> tuple[int, int]:
    if action["type"] not in _PLACED:
        return down, right
    row, column = int(action["y"] * height), int(action["x"] * width)
    return min(max(down, -row), height - 1 - row), min(max(right, -column), width - 1 - column)


def _moved(action: Json, down: int, right: int, height: int, width: int) -> Json:
    if action["type"] not in _PLACED:
        return action
    return {**action, "x": action["x"] + right / width, "y": action["y"] + down / height}
