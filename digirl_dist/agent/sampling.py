"""Draws from distributions with NumPy generators, so that each episode has randomness of its own."""

from __future__ import annotations

import numpy as np


def draw(log_probs: np.ndarray, rng: np.random.Generator) -> int:
    """An index drawn with the probabilities exp(``log_probs``), shape [N], by inverting their cumulative sum."""
    edges = np.cumsum(np.exp(log_probs))
    return int(min(np.searchsorted(edges, rng.random() * edges[-1], side="right"), len(edges) - 1))
