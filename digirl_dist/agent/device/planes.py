"""Traces of the latest actions, as planes that move with the screenshot."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
import torch

from digirl_dist.agent.device.touch import Point, TouchGrid
from digirl_dist.emulator.remembered import Memory

TRACE_PLANES = 2
_FADE, _FORGOTTEN = 0.7, 8
"""How much weaker a trace is than that of the action after it, and the age at which one of another screen is gone."""

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
            if grid.kinds[kind].placed and (memory.here or age < _FORGOTTEN):
                spot = _spot(memory, grid, shifts[row] if shifts else (0.0, 0.0))
                planes[row, 0] = np.maximum(planes[row, 0], _FADE**age * spot)
                planes[row, 1] = np.maximum(planes[row, 1], memory.here * spot)
    return Traces(torch.from_numpy(planes), torch.from_numpy(latest), torch.from_numpy(here))


def _spot(memory: Memory, grid: TouchGrid, shift: Shift) -> np.ndarray:
    """A round spot of height 1 and a deviation of one cell, shape [rows, columns]."""
    down = np.arange(grid.rows) + 0.5 - (memory.action.y + shift[0]) * grid.rows
    right = np.arange(grid.columns) + 0.5 - (memory.action.x + shift[1]) * grid.columns
    return np.asarray(np.exp(-(down[:, None] ** 2 + right**2) / 2))


def shifted(pictures: torch.Tensor, points: Sequence[Sequence[Point]], most: int) -> tuple[torch.Tensor, list[Shift]]:
    """Each of B pictures [B, 3, H, W] moved by up to ``most`` pixels down or up and right or left.

    The second part of the answer is how far each moved down and right, in shares of its size. Edges are repeated. The
    shift of a picture is cut so that its ``points`` stay inside. Random numbers are torch's own.
    Source: the random shifts of DrQ (Kostrikov et al. 2020, arXiv 2004.13649, section 3.1).
    """
    count, _, height, width = pictures.shape
    wanted = torch.randint(-most, most + 1, (count, 2)).tolist()
    pairs = zip(points, wanted, strict=True)
    shifts = [_inside(own, down, right, height, width) for own, (down, right) in pairs]
    down, right = torch.tensor(shifts).unbind(dim=1)
    rows = (torch.arange(height) - down[:, None]).clamp(0, height - 1)
    columns = (torch.arange(width) - right[:, None]).clamp(0, width - 1)
    moved = pictures[torch.arange(count)[:, None, None], :, rows[:, :, None], columns[:, None, :]]
    return moved.permute(0, 3, 1, 2), [(down / height, right / width) for down, right in shifts]


def _inside(points: Sequence[Point], down: int, right: int, height: int, width: int) -> tuple[int, int]:
    for x, y in points:
        row, column = min(int(y * height), height - 1), min(int(x * width), width - 1)
        down, right = min(max(down, -row), height - 1 - row), min(max(right, -column), width - 1 - column)
    return down, right
