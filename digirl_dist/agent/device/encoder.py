"""The network that reads screenshots, instructions and traces of earlier actions; and what value functions read."""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import nn
from torch.nn import functional

from digirl_dist.agent.device.planes import TRACE_PLANES
from digirl_dist.agent.device.reading import LABEL_FLAGS, TEXT_FLAGS, WORD_BUCKETS
from digirl_dist.agent.device.touch import TouchGrid

STRIDE = 8
"""Pixels of the scaled screenshot per cell of the touch grid, in both directions."""

_HEADS = 4
"""Places that the policy attends to when it decides between tapping, typing and so on, and where to tap: what is right
to touch may depend on what is seen elsewhere."""
_WAYS, _NEAR = 7, 0.05
"""What is looked at of a way, and how near of its start, in shares of the screen, a drag hardly ends."""
_FLAT = 0.02
"""The contrast of a cell in which nothing is drawn, as a share of that between black and white."""
_LEFT_OUT = 0.3
"""Share of the words of labels and texts that are left out in training mode, so that no chance word is relied on.

Word dropout of Iyyer et al. 2015 (Deep unordered composition rivals syntactic methods for text classification)."""

Bags = tuple[torch.Tensor, torch.Tensor]
"""Bags of words as ``torch.nn.EmbeddingBag`` takes them: all words in a row, and where each bag begins."""


class Seen(NamedTuple):
    """What the network makes of B observations with N places each: the cells, and then the labels."""

    places: torch.Tensor
    """Logits of the places for each of P kinds of place, [B, P, N]."""
    features: torch.Tensor
    """[B, F]."""
    tokens: torch.Tensor
    """Of the places, [B, N, width]."""
    text: torch.Tensor
    """Of the instruction, [B, width]."""


class Encoder(nn.Module):
    """Reads B screenshots [B, 3, H, W] (uint8), instructions, and traces [B, P, rows, columns].

    For an agent that ``reads`` labels also up to L of these each, as bags of words. With ``context``, where to touch
    depends on what is seen elsewhere. In training mode the convolutions compute in bfloat16 on GPUs; on CPUs, also on
    those with instructions for it, that took a fifth longer.
    """

    def __init__(self, grid: TouchGrid, placed: int, width: int, reads: bool, context: bool) -> None:
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
        self._trace = nn.Conv2d(TRACE_PLANES, width, 3, padding=1)
        self._norm = nn.LayerNorm(width)
        self._touch_query = nn.Linear(width, placed * width)
        self._touch_context = nn.Linear(_HEADS * width, placed * width, bias=False) if context else None
        if self._touch_context is not None:
            nn.init.zeros_(self._touch_context.weight)
        self._touch_key = nn.Linear(width, width)
        self._look_query = nn.Linear(width, _HEADS * width)
        if reads:
            self._label = nn.Sequential(nn.Linear(2 * width + LABEL_FLAGS, width), nn.LayerNorm(width), nn.ReLU())
        self.feature_size = width + _HEADS * width + width + 2

    def forward(self, images: torch.Tensor, texts: Bags, planes: torch.Tensor, labels: Labels | None = None) -> Seen:
        text = self._words(*texts)
        pictures = images.contiguous(memory_format=torch.channels_last).float() / 127.5 - 1  # a third faster on CPUs
        with torch.autocast(images.device.type, torch.bfloat16, enabled=self.training and images.is_cuda):
            drawn = self._vision(pictures)
        seen = drawn.float() + self._place + self._trace(planes)
        cells = torch.relu(self._norm(seen.flatten(2).transpose(1, 2)))
        tokens = cells if labels is None else torch.cat([cells, self._labels(cells, labels)], dim=1)
        scale = cells.shape[2] ** -0.5
        closed = 0.0 if labels is None else labels.closed.float().masked_fill(labels.closed, float("-inf"))[:, None]
        looks = self._look_query(text).unflatten(1, (_HEADS, -1)) @ tokens.transpose(1, 2) * scale + closed
        looked_at = (looks.softmax(dim=2) @ tokens).flatten(1)
        context = 0.0 if self._touch_context is None else self._touch_context(looked_at)
        queries = (self._touch_query(text) + context).unflatten(1, (-1, text.shape[1]))
        logits = queries @ self._touch_key(tokens).transpose(1, 2) * scale + closed
        best = torch.stack([logits[:, 0].amax(dim=1), logits[:, 0].logsumexp(dim=1)], dim=1)
        features = torch.cat([text, looked_at, cells.mean(dim=1), best.detach()], dim=1)
        return Seen(logits, features, tokens, text)

    def words(self, bags: Bags) -> torch.Tensor:
        """Returns the sum of the words of each bag, [bags, width]; in training mode some are left out at random."""
        words, starts = bags
        kept = functional.dropout(torch.ones(words.shape, device=words.device), _LEFT_OUT) if self.training else None
        found: torch.Tensor = self._words(words, starts, per_sample_weights=kept)
        return found

    def _labels(self, cells: torch.Tensor, labels: Labels) -> torch.Tensor:
        """The tokens of labels: their words and flags, and what the cell of their middle shows, [B, L, width]."""
        words = self.words(labels.words).view(*labels.cells.shape, -1)
        shown = cells.gather(1, labels.cells[:, :, None].expand(-1, -1, cells.shape[2]))
        found: torch.Tensor = self._label(torch.cat([words, shown, labels.flags], dim=2))
        return found


class Labels(NamedTuple):
    """Up to L labels of each of B observations, in tensors; the shorter lists are filled up."""

    words: Bags
    """B * L bags, those of an observation after each other."""
    cells: torch.Tensor
    """The cells of their middles, [B, L]."""
    flags: torch.Tensor
    """[B, L, LABEL_FLAGS]."""
    closed: torch.Tensor
    """Which places cannot be chosen, [B, cells + L]: those that fill up, and those at the point of another one."""


class Texts(nn.Module):
    """Scores the texts that can be typed, by their words, the instruction, and the place where they would be typed."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self._query = nn.Linear(2 * width, width)
        self._key = nn.Linear(width + TEXT_FLAGS, width)
        self._prior = nn.Parameter(torch.tensor([4.0, 0.7, 2.0, 1.5, -3.0, -3.0]))

    def forward(self, seen: Seen, place: torch.Tensor, words: torch.Tensor, flags: torch.Tensor) -> torch.Tensor:
        """Returns logits [B, T]; ``place`` [B, width] is its token or 0, ``words`` are [B, T, width]."""
        query = self._query(torch.cat([seen.text, place], dim=1))
        keys = self._key(torch.cat([words, flags], dim=2))
        fit: torch.Tensor = (keys @ query[:, :, None])[:, :, 0] * words.shape[2] ** -0.5
        return fit + flags @ self._prior


class Ends(nn.Module):
    """Scores the places where a drag may end, by themselves, by where it begins, and by the way between them."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self._query = nn.Linear(2 * width, width)
        self._key = nn.Linear(width, width)
        self._way = nn.Linear(width, _WAYS)
        nn.init.normal_(self._way.weight, std=0.01)
        self._way.bias.data.copy_(torch.tensor([0.0, 0.0, -1.0, -1.0, -4.0, 0.0, 0.0]))

    def forward(self, seen: Seen, place: torch.Tensor, ways: torch.Tensor) -> torch.Tensor:
        """Returns logits [B, N]; ``place`` is the token of the start, [B, width], and ``ways`` from there [B, N, 2]."""
        query = self._query(torch.cat([seen.text, place], dim=1))
        near = torch.exp(-(ways**2).sum(dim=2, keepdim=True) / (2 * _NEAR**2))
        looked_at = torch.cat([ways, ways.abs(), near, torch.tanh(ways / _NEAR)], dim=2)
        way: torch.Tensor = looked_at @ self._way(seen.text)[:, :, None]
        fit: torch.Tensor = self._key(seen.tokens) @ query[:, :, None]
        scale: float = seen.tokens.shape[2] ** -0.5
        return seen.places[:, -1] + fit[:, :, 0] * scale + way[:, :, 0]


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


class CriticInputs(nn.Module):
    """Describes a screen by the colours of its cells, and an instruction by the sum of fixed random vectors of words.

    A policy need not tell two screens apart on which it does the same; a value function must if one leads nowhere.
    """

    _vectors: torch.Tensor

    def __init__(self, width: int, cells: int) -> None:
        super().__init__()
        self.size = _PER_CELL * cells + width
        vectors = 0.3 * torch.randn(WORD_BUCKETS, width, generator=torch.Generator().manual_seed(0))
        self.register_buffer("_vectors", vectors, persistent=False)

    def forward(self, images: torch.Tensor, texts: Bags) -> torch.Tensor:
        """Returns [B, size] for pictures [B, 3, H, W] (uint8) and as many instructions."""
        mean, deviation = of_cells(images.float() / 255)
        text = functional.embedding_bag(texts[0], self._vectors, texts[1], mode="sum")
        return torch.cat([mean.flatten(1), deviation.flatten(1), text], dim=1)
