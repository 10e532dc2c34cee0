"""Whether episodes of one task and seed started alike, which algorithms that compare them rely on."""

from __future__ import annotations

import io
from collections.abc import Iterable

import numpy as np
from PIL import Image

from digirl_dist.trajectory import Observation, Trajectory

_UNREADABLE = (OSError, ValueError, SyntaxError, Image.DecompressionBombError)
_FORMATS = ("PNG", "JPEG")
_CLOSE = 1e-4
"""Relative difference of numbers that machines may compute otherwise."""
REMEDY = "reset must draw from the given seed alone, in Gymnasium by super().reset(seed=seed) and self.np_random"


def start_alike(first: Observation, other: Observation, steady: bool = True) -> bool:
    """Returns whether two observations are one start; ``steady`` is that of the emulator's spec."""
    if first.text != other.text or not _close(first.vector, other.vector):
        return False
    return not steady or first.image == other.image or _same_pixels(first.image, other.image)


def unlike_starts(episodes: Iterable[Trajectory], steady: bool = True) -> dict[str, str]:
    """Returns the tasks of which two episodes of one seed started differently, with the reason in words."""
    first: dict[tuple[str, int], Trajectory] = {}
    unlike: dict[str, str] = {}
    for episode in (each for each in episodes if each.steps):
        task, seed = episode.ticket.task.id, episode.ticket.seed
        known = first.setdefault((task, seed), episode)
        if task in unlike or known is episode:
            continue
        if not start_alike(known.steps[0].observation, episode.steps[0].observation, steady):
            places = " and ".join(sorted({known.worker, episode.worker}))
            unlike[task] = f"two episodes of seed {seed} started differently (on {places}); {REMEDY}"
    return unlike


def _close(first: np.ndarray | None, other: np.ndarray | None) -> bool:
    if first is None or other is None:
        return first is other
    return first.shape == other.shape and bool(np.allclose(first, other, rtol=_CLOSE, atol=_CLOSE))


def _same_pixels(first: bytes | None, other: bytes | None) -> bool:
    """Compares pictures that may have been compressed otherwise; what cannot be read counts as alike."""
    try:
        with (
            Image.open(io.BytesIO(first or b""), formats=_FORMATS) as one,
            Image.open(io.BytesIO(other or b""), formats=_FORMATS) as two,
        ):
            return one.size == two.size and np.array_equal(one.convert("RGB"), two.convert("RGB"))
    except _UNREADABLE:
        return True
