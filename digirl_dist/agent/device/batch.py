"""Labels and texts of several observations in tensors, shorter lists filled up."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import chain
from typing import NamedTuple

import numpy as np
import torch
from torch import nn

from digirl_dist.agent.device.encoder import Bags, Labels
from digirl_dist.agent.device.planes import Shift
from digirl_dist.agent.device.reading import LABEL_FLAGS, TEXT_FLAGS, Read
from digirl_dist.agent.device.touch import Point, TouchGrid

_DIGITS = 6
"""Places that are equal to so many digits are one."""


def bags_of(hashed: Sequence[Sequence[int]]) -> Bags:
    """As many bags of words, hashed."""
    starts = np.cumsum([0, *map(len, hashed[:-1])])
    flat = list(chain.from_iterable(hashed))
    return torch.tensor(flat, dtype=torch.long), torch.from_numpy(starts.astype(np.int64))


def labels_of(rows: Sequence[Read], grid: TouchGrid, shifts: Sequence[Shift] | None = None) -> Labels:
    """The labels of the observations, on pictures moved by ``shifts``; there is room for at least one each."""
    count, length = len(rows), max([1, *(len(each.labels) for each in rows)])
    words: list[list[int]] = []
    cells, flags = np.zeros((count, length), np.int64), np.zeros((count, length, LABEL_FLAGS), np.float32)
    closed = np.zeros((count, grid.cells + length), bool)
    for row, each in enumerate(rows):
        words += [*(place.words for place in each.places), *[[]] * (length - len(each.places))]
        if not shifts:  # a moved picture's cells stand for others
            closed[row, list(grid.owners(each.labels))] = True
        own, middles = len(each.labels), [label.middle for label in each.labels]
        cells[row, :own] = [grid.cell(_moved(point, shifts, row)) for point in middles]
        flags[row, :own] = np.reshape([place.flags for place in each.places], (own, LABEL_FLAGS))
        firsts: dict[Point, int] = {}
        again = [
            firsts.setdefault((round(x, _DIGITS), round(y, _DIGITS)), index) < index
            for index, (x, y) in enumerate(middles)
        ]
        closed[row, grid.cells :] = [*again, *[True] * (length - own)]
    return Labels(bags_of(words), *map(torch.from_numpy, (cells, flags, closed)))


def points_of(rows: Sequence[Read], grid: TouchGrid, length: int, shifts: Sequence[Shift] | None) -> torch.Tensor:
    """Where the ``length`` places of each observation are, right and down, [B, length, 2]; 0 where there is none."""
    points = np.zeros((len(rows), length, 2), np.float32)
    points[:, : grid.cells] = grid.points(())
    for row, each in enumerate(rows):
        for index, label in enumerate(each.labels, grid.cells):
            points[row, index] = _moved(label.middle, shifts, row)
    return torch.from_numpy(points)


class Typeable(NamedTuple):
    """Up to T texts of each of B observations."""

    words: Bags
    """B * T bags, those of an observation after each other."""
    flags: torch.Tensor
    """[B, T, TEXT_FLAGS]."""
    closed: torch.Tensor
    """Which fill up, [B, T]."""


def texts_of(rows: Sequence[Read]) -> Typeable:
    """The texts that can be typed."""
    length = max(len(each.texts) for each in rows)
    words = [[*(text.words for text in each.typeable), *[[]] * (length - len(each.texts))] for each in rows]
    flags = [torch.tensor([text.flags for text in each.typeable]).reshape(-1, TEXT_FLAGS) for each in rows]
    lengths = torch.tensor([len(each.texts) for each in rows])
    filled = nn.utils.rnn.pad_sequence(flags, batch_first=True)
    return Typeable(bags_of(list(chain.from_iterable(words))), filled, torch.arange(length) >= lengths[:, None])


def _moved(point: Point, shifts: Sequence[Shift] | None, row: int) -> Point:
    return (point[0] + shifts[row][1], point[1] + shifts[row][0]) if shifts else point
