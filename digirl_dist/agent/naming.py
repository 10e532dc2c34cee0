"""Where a screen shows what an instruction names: labels and instructions, compared word by word, as planes."""

from __future__ import annotations

import re
from collections.abc import Sequence

import numpy as np
import torch

from digirl_dist.agent.touch import TouchGrid
from digirl_dist.agent.traces import Shift
from digirl_dist.agent.words import words_of
from digirl_dist.emulator import Label
from digirl_dist.emulator.remembered import Memory

PLANES = 4
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
    """Returns [B, PLANES, rows, columns] of B observations; on pictures that were moved by ``shifts`` they move along.

    Each value is that of the best label in its cell, from 0 to 1: whether the instruction has its name, in the same
    letters or others; which share of the words of its name and role the instruction has; whether it is the one that
    the instruction names first, and best, of those that were not touched yet, as far as ``memories`` reach; whether
    text can be entered there.
    """
    planes = np.zeros((len(labels), PLANES, grid.rows, grid.columns), np.float32)
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


def _compared(instruction: str, labels: Sequence[Label], memories: Sequence[Memory]) -> list[np.ndarray]:
    """Returns the values of the planes for each label, shape [PLANES]."""
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
