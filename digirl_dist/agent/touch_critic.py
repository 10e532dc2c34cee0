"""What value functions read of a touch screen: numbers that no update of the policy changes."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import nn
from torch.nn import functional

from digirl_dist.agent.touch_encoder import of_cells
from digirl_dist.agent.words import bags

_PER_CELL = 6
"""The mean of each colour in a cell, and the deviation of each."""
_SEED = 0


class CriticInputs(nn.Module):
    """Describes a screen by the colours of its cells, and an instruction by the sum of fixed random vectors of words.

    A policy need not tell two screens apart on which it does the same; a value function must if one leads nowhere.
    """

    _vectors: torch.Tensor

    def __init__(self, buckets: int, width: int, cells: int) -> None:
        super().__init__()
        self._buckets = buckets
        self.size = _PER_CELL * cells + width
        vectors = torch.randn(buckets, width, generator=torch.Generator().manual_seed(_SEED))
        self.register_buffer("_vectors", 0.3 * vectors, persistent=False)

    def forward(self, images: torch.Tensor, instructions: Sequence[str]) -> torch.Tensor:
        """Returns [B, size] for pictures [B, 3, H, W] (uint8) and as many instructions."""
        mean, deviation = of_cells(images.float() / 255)
        words, starts = bags(instructions, self._buckets)
        text = functional.embedding_bag(words.to(images.device), self._vectors, starts.to(images.device), mode="sum")
        return torch.cat([mean.flatten(1), deviation.flatten(1), text], dim=1)
