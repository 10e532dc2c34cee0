"""Random shifts of pictures and of the taps on them, so that what was learned at one place is known at others."""

from __future__ import annotations

from collections.abc import Sequence

import torch

from digirl_dist.types import Json

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
