"""What a policy on touch screens sees of its latest actions: their places as planes, their kinds as numbers."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
import torch

from digirl_dist.agent.touch import TouchGrid
from digirl_dist.emulator.remembered import Memory

PLANES = 2
_FADE = 0.7
"""How much weaker a trace is than that of the action after it."""

Shift = tuple[float, float]
"""Down and right, in shares of the picture."""


class Traces(NamedTuple):
    """The memories of B observations."""

    planes: torch.Tensor
    """[B, PLANES, rows, columns]: where it touched lately, and where on the very screen that is seen."""
    latest: torch.Tensor
    """[B, K]: the kind of the latest action."""
    here: torch.Tensor
    """[B, K]: the kinds of all actions on the very screen that is seen."""

    def to(self, device: torch.device) -> Traces:
        return Traces(*(part.to(device) for part in self))


def traces(memories: Sequence[Sequence[Memory]], grid: TouchGrid, shifts: Sequence[Shift] | None = None) -> Traces:
    """Of each observation's memories, oldest first; on pictures that were moved by ``shifts`` they move along."""
    count, kinds = len(memories), len(grid.kinds)
    planes = np.zeros((count, PLANES, grid.rows, grid.columns), np.float32)
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
