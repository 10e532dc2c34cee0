"""A small policy for touch screens: from a screenshot and an instruction to a kind of action and a touch point."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
import torch
from torch import nn

from digirl_dist.agent.pixels import Pictures, fitted_size
from digirl_dist.agent.plugins.device import DeviceAgentSettings
from digirl_dist.agent.sampling import draw
from digirl_dist.agent.shift import shifted
from digirl_dist.agent.touch import KINDS, PRIOR, TAP, TYPE, Choice, TouchGrid
from digirl_dist.agent.words import bags, quoted
from digirl_dist.emulator import DeviceActions, EmulatorSpec
from digirl_dist.errors import SettingsError
from digirl_dist.trajectory import Decision, Observation
from digirl_dist.types import Json

_STRIDE = 8
"""Pixels of the scaled screenshot per cell of the touch grid, in both directions."""


class Scores(NamedTuple):
    """Log-probabilities of the kinds of action, [B, KINDS], and of the cells given a tap, [B, cells]."""

    kinds: torch.Tensor
    cells: torch.Tensor


class DevicePolicy(nn.Module):
    """Fulfils ``Agent``.

    The probability of an action is that of its kind, and for a tap times that of its cell. Cells are chosen by how
    well their look and place match the instruction (attention over a touch grid), so a button is found wherever it is.
    The picture is scaled to one size per emulator; the architecture is the same for all sizes.
    """

    def __init__(self, settings: DeviceAgentSettings, spec: EmulatorSpec) -> None:
        """Raises SettingsError for an emulator without screenshots or with other than device actions."""
        super().__init__()
        if spec.image_size is None or not isinstance(spec.actions, DeviceActions):
            raise SettingsError("the device agent needs screenshots and touch actions; use agent=generic for others")
        height, width = fitted_size(spec.image_size, settings.short_side, _STRIDE)
        self._grid = TouchGrid(height // _STRIDE, width // _STRIDE)
        self._pictures = Pictures((height, width))
        self._shift = settings.shift
        self._encoder = Encoder(settings, self._grid)
        self.feature_size = self._encoder.feature_size
        self._kind_head = nn.Sequential(
            nn.Linear(self.feature_size, settings.width), nn.ReLU(), nn.Linear(settings.width, KINDS)
        )
        last = self._kind_head[-1]
        assert isinstance(last, nn.Linear)
        nn.init.normal_(last.weight, std=0.01)
        last.bias.data.copy_(torch.tensor(PRIOR).log())

    def act(self, observations: Sequence[Observation], rngs: Sequence[np.random.Generator]) -> list[Decision]:
        images = self._pictures.decoded([observation.image for observation in observations])
        scores = self._scores(images, observations)
        kinds, cells = scores.kinds.double().cpu().numpy(), scores.cells.double().cpu().numpy()
        rows = zip(observations, kinds, cells, rngs, strict=True)
        return [self._decide(observation, kind, cell, rng) for observation, kind, cell, rng in rows]

    def log_prob(self, observations: Sequence[Observation], actions: Sequence[Json]) -> torch.Tensor:
        """In training mode those of randomly shifted pictures. Raises ActionError for actions it never chooses."""
        pictures = self._pictures.remembered([observation.image for observation in observations])
        if self.training and self._shift:
            pictures, actions = shifted(pictures, actions, self._shift)
        pairs = zip(observations, actions, strict=True)
        choices = [self._grid.choice(action, quoted(observation.text)) for observation, action in pairs]
        kind = torch.tensor([choice.kind for choice in choices], device=self._device)
        cell = torch.tensor([choice.cell for choice in choices], device=self._device)
        scores = self._scores(pictures, observations)
        of_kind = scores.kinds.gather(1, kind[:, None])[:, 0]
        of_cell = scores.cells.gather(1, cell[:, None])[:, 0]
        return of_kind + torch.where(kind == TAP, of_cell, torch.zeros_like(of_cell))

    def features(self, observations: Sequence[Observation]) -> torch.Tensor:
        with torch.no_grad():
            images = self._pictures.remembered([observation.image for observation in observations])
            features: torch.Tensor = self._encoder(images.to(self._device), [seen.text for seen in observations])[1]
            return features

    @property
    def _device(self) -> torch.device:
        return next(self.parameters()).device

    def _scores(self, images: torch.Tensor, observations: Sequence[Observation]) -> Scores:
        texts = [observation.text for observation in observations]
        cell_logits, features = self._encoder(images.to(self._device), texts)
        can_type = torch.tensor([quoted(text) is not None for text in texts], device=self._device)
        kinds = _without_typing(self._kind_head(features), can_type).log_softmax(dim=1)
        return Scores(kinds, cell_logits.log_softmax(dim=1))

    def _decide(
        self, observation: Observation, kinds: np.ndarray, cells: np.ndarray, rng: np.random.Generator
    ) -> Decision:
        kind = draw(kinds, rng)
        cell = draw(cells, rng) if kind == TAP else 0
        log_prob = kinds[kind] + (cells[cell] if kind == TAP else 0.0)
        return Decision(self._grid.action(Choice(kind, cell), quoted(observation.text)), float(log_prob))


class Encoder(nn.Module):
    """Reads B screenshots [B, 3, H, W] (uint8) and instructions; answers cell logits [B, cells] and features [B, F]."""

    def __init__(self, settings: DeviceAgentSettings, grid: TouchGrid) -> None:
        super().__init__()
        width, heads = settings.width, settings.heads
        self._buckets = settings.word_buckets
        self._words = nn.EmbeddingBag(settings.word_buckets, width, mode="sum")
        nn.init.normal_(self._words.weight, std=0.3)
        self._vision = nn.Sequential(
            nn.Conv2d(3, width // 4, 5, stride=2, padding=2),
            nn.ReLU(),
            nn.Conv2d(width // 4, width // 2, 3, stride=2, padding=1),
            nn.ReLU(),
            nn.Conv2d(width // 2, 3 * width // 4, 3, padding=1),
            nn.ReLU(),
            nn.MaxPool2d(2),  # a label looks alike wherever in its cell it lies
            nn.Conv2d(3 * width // 4, width, 3, padding=1),
        )
        self._place = nn.Parameter(0.1 * torch.randn(width, grid.rows, grid.columns))
        self._norm = nn.LayerNorm(width)
        self._touch_query = nn.Linear(width, width)
        self._touch_key = nn.Linear(width, width)
        self._look_query = nn.Linear(width, heads * width)
        self._heads = heads
        self.feature_size = width + heads * width + width + 2

    def forward(self, images: torch.Tensor, texts: Sequence[str]) -> tuple[torch.Tensor, torch.Tensor]:
        words, starts = bags(texts, self._buckets)
        text = self._words(words.to(images.device), starts.to(images.device))
        seen = self._vision(images.float() / 127.5 - 1) + self._place
        cells = torch.relu(self._norm(seen.flatten(2).transpose(1, 2)))
        scale = cells.shape[2] ** -0.5
        logits = torch.einsum("bnd,bd->bn", self._touch_key(cells), self._touch_query(text)) * scale
        looks = self._look_query(text).unflatten(1, (self._heads, -1)) @ cells.transpose(1, 2) * scale
        looked_at = (looks.softmax(dim=2) @ cells).flatten(1)
        best = torch.stack([logits.amax(dim=1), logits.logsumexp(dim=1)], dim=1)
        return logits, torch.cat([text, looked_at, cells.mean(dim=1), best.detach()], dim=1)


def _without_typing(logits: torch.Tensor, can_type: torch.Tensor) -> torch.Tensor:
    """Rows whose instruction quotes nothing cannot type."""
    barred = torch.zeros_like(logits, dtype=torch.bool)
    barred[:, TYPE] = ~can_type
    return logits.masked_fill(barred, float("-inf"))
