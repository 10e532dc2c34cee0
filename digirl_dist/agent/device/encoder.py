"""The network that reads screenshots, instructions and traces of earlier actions; and what value functions read."""

from __future__ import annotations

import zlib
from collections.abc import Sequence
from typing import NamedTuple

import torch
from torch import nn
from torch.nn import functional

from digirl_dist.agent.device.planes import NAME_PLANES, TRACE_PLANES, words_of
from digirl_dist.agent.device.touch import TouchGrid

WORD_BUCKETS = 2048
"""Embeddings into which words are hashed."""
STRIDE = 8
"""Pixels of the scaled screenshot per cell of the touch grid, in both directions."""

_HEADS = 4
"""Places that the policy attends to when it decides between tapping, typing, swiping and so on."""
_FLAT = 0.02
"""The contrast of a cell in which nothing is drawn, as a share of that between black and white."""


class Seen(NamedTuple):
    """What the network makes of B observations."""

    cells: torch.Tensor
    """Logits of the cells for each of P kinds of action that have a place, [B, P, cells]."""
    features: torch.Tensor
    """[B, F]."""


class Encoder(nn.Module):
    """Reads B screenshots [B, 3, H, W] (uint8), instructions, and planes [B, P, rows, columns].

    The planes are traces and, for an agent that ``reads`` labels, the places that the instruction names.
    """

    def __init__(self, grid: TouchGrid, placed: int, width: int, reads: bool = False) -> None:
        super().__init__()
        self._words = nn.EmbeddingBag(WORD_BUCKETS, width, mode="sum")
        nn.init.normal_(self._words.weight, std=0.3)
        self._vision = nn.Sequential(
            nn.Conv2d(3, width // 4, 5, stride=2, padding=2),
            nn.ReLU(inplace=True),
            nn.Conv2d(width // 4, width // 2, 3, padding=1),
            nn.MaxPool2d(2),  # a letter looks alike wherever it lies, with the next one a label
            nn.ReLU(inplace=True),  # the same as before the pool, at a quarter of the pixels
            nn.Conv2d(width // 2, 3 * width // 4, 3, padding=1),
            nn.MaxPool2d(2),
            nn.ReLU(inplace=True),
            nn.Conv2d(3 * width // 4, width, 3, padding=1),
        )
        for layer in self._vision:
            if isinstance(layer, nn.Conv2d) and layer.bias is not None:  # torch's own let places outshine pictures
                nn.init.kaiming_normal_(layer.weight, nonlinearity="relu")
                nn.init.zeros_(layer.bias)
        self._place = nn.Parameter(0.1 * torch.randn(width, grid.rows, grid.columns))
        planes = TRACE_PLANES + (NAME_PLANES if reads else 0)
        self._trace = nn.Conv2d(planes, width, 3, padding=1)
        self._norm = nn.LayerNorm(width)
        self._touch_query = nn.Linear(width, placed * width)
        self._touch_key = nn.Linear(width, width)
        self._look_query = nn.Linear(width, _HEADS * width)
        self._placed = placed
        self.feature_size = width + _HEADS * width + width + 2

    def forward(self, images: torch.Tensor, texts: Sequence[str], planes: torch.Tensor) -> Seen:
        words, starts = bags(texts)
        text = self._words(words.to(images.device), starts.to(images.device))
        pictures = images.contiguous(memory_format=torch.channels_last).float() / 127.5 - 1  # a third faster on CPUs
        seen = self._vision(pictures) + self._place + self._trace(planes)
        cells = torch.relu(self._norm(seen.flatten(2).transpose(1, 2)))
        scale = cells.shape[2] ** -0.5
        queries = self._touch_query(text).unflatten(1, (self._placed, -1))
        logits = queries @ self._touch_key(cells).transpose(1, 2) * scale
        looks = self._look_query(text).unflatten(1, (_HEADS, -1)) @ cells.transpose(1, 2) * scale
        looked_at = (looks.softmax(dim=2) @ cells).flatten(1)
        best = torch.stack([logits[:, 0].amax(dim=1), logits[:, 0].logsumexp(dim=1)], dim=1)
        return Seen(logits, torch.cat([text, looked_at, cells.mean(dim=1), best.detach()], dim=1))


def contrast(images: torch.Tensor) -> torch.Tensor:
    """The log of the deviation of brightness in each cell of pictures [B, 3, H, W] (uint8): [B, rows, columns].

    At most 0, which is the cell with the most to see.
    """
    _, deviation = of_cells(images.float().mean(dim=1, keepdim=True) / 255)
    found = (deviation + _FLAT).log()[:, 0]
    return found - found.amax(dim=(1, 2), keepdim=True)


def of_cells(pictures: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """Returns mean and deviation of the pixels of each cell of pictures [B, C, H, W]: [B, C, rows, columns] both."""
    mean, square = functional.avg_pool2d(pictures, STRIDE), functional.avg_pool2d(pictures**2, STRIDE)
    return mean, (square - mean**2).clamp(min=0).sqrt()


_PER_CELL = 6
"""The mean of each colour in a cell, and the deviation of each."""
_SEED = 0


class CriticInputs(nn.Module):
    """Describes a screen by the colours of its cells, and an instruction by the sum of fixed random vectors of words.

    A policy need not tell two screens apart on which it does the same; a value function must if one leads nowhere.
    """

    _vectors: torch.Tensor

    def __init__(self, width: int, cells: int) -> None:
        super().__init__()
        self.size = _PER_CELL * cells + width
        vectors = torch.randn(WORD_BUCKETS, width, generator=torch.Generator().manual_seed(_SEED))
        self.register_buffer("_vectors", 0.3 * vectors, persistent=False)

    def forward(self, images: torch.Tensor, instructions: Sequence[str]) -> torch.Tensor:
        """Returns [B, size] for pictures [B, 3, H, W] (uint8) and as many instructions."""
        mean, deviation = of_cells(images.float() / 255)
        words, starts = bags(instructions)
        text = functional.embedding_bag(words.to(images.device), self._vectors, starts.to(images.device), mode="sum")
        return torch.cat([mean.flatten(1), deviation.flatten(1), text], dim=1)


def hashed_words(text: str, buckets: int = WORD_BUCKETS) -> list[int]:
    """The buckets of the words of ``text`` in lower case, the same on every machine and in every process."""
    return [zlib.crc32(word.encode()) % buckets for word in words_of(text)]


def bags(texts: Sequence[str]) -> tuple[torch.Tensor, torch.Tensor]:
    """Bags of words as ``torch.nn.EmbeddingBag`` takes them: all words in a row, and where each text begins."""
    hashed = [hashed_words(text) for text in texts]
    starts = [0]
    for words in hashed[:-1]:
        starts.append(starts[-1] + len(words))
    flat = [word for words in hashed for word in words]
    return torch.tensor(flat, dtype=torch.long), torch.tensor(starts, dtype=torch.long)
