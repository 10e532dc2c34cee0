"""A small policy for touch screens: from a screenshot and an instruction to a kind of action and a touch point."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
import torch
from torch import nn

from digirl_dist.agent import ActionProbabilities
from digirl_dist.agent.device.encoder import STRIDE, CriticInputs, Encoder, Seen, contrast
from digirl_dist.agent.device.planes import (
    EDITABLE,
    NAME_PLANES,
    NEXT,
    SHARED,
    Shift,
    Traces,
    aimed,
    named_places,
    shifted,
    traces,
)
from digirl_dist.agent.device.touch import Choice, Kind, TouchGrid, kinds_of
from digirl_dist.agent.pixels import Pictures, fitted_size
from digirl_dist.agent.prompts import quoted
from digirl_dist.agent.sampling import draw
from digirl_dist.emulator import DeviceActions, EmulatorSpec, Label
from digirl_dist.emulator.remembered import Memory, recalled
from digirl_dist.trajectory import Decision, Observation
from digirl_dist.types import Json

_NAMING = 4.0
"""How strongly an untrained policy prefers to touch what the instruction names: by this many nats."""


class Scores(NamedTuple):
    """Log-probabilities of the kinds of action, [B, K], and of the cells given each of the P kinds that have a place,
    [B, P, cells]."""

    kinds: torch.Tensor
    cells: torch.Tensor


class Read(NamedTuple):
    """The text of an observation, taken apart."""

    instruction: str
    texts: list[str]
    """The instruction's quoted parts."""
    memories: list[Memory]
    labels: list[Label]


class DevicePolicy(nn.Module):
    """Fulfils ``Agent``.

    The probability of an action is that of its kind, and where it has a place times that of its cell. Cells are chosen
    by how well their look and place match the instruction (attention over a touch grid), so a button is found wherever
    it is. The latest actions, listed in the observation's text, are a second picture of traces; an action that was done
    on the very same screen is at first less probable, by a weight that is learned like all others. Where the emulator
    names what is on the screen, a third picture marks what the instruction names. Kinds of actions have two last
    layers: one for instructions that quote a text, one for the others. With a single one, learning tasks without typing
    would soon make typing improbable everywhere. The picture is scaled to one size per emulator; the architecture is
    the same for all sizes.
    """

    def __init__(
        self,
        spec: EmulatorSpec,
        *,
        short_side: int,
        width: int,
        actions: Sequence[str],
        memory: int,
        saliency: float,
        reluctance: float,
        labels: bool,
        shift: int,
    ) -> None:
        """The values are the settings of ``agent=device``."""
        super().__init__()
        assert spec.image_size is not None and isinstance(spec.actions, DeviceActions)  # as the plugin's ``suits`` says
        size = fitted_size(spec.image_size, short_side, STRIDE)
        kinds = kinds_of(actions or _useful(spec.actions, memory))
        self._grid = TouchGrid(size[0] // STRIDE, size[1] // STRIDE, kinds)
        self._pictures = Pictures(size)
        self._shift = shift
        self._placed = [index for index, kind in enumerate(kinds) if kind.placed]
        self._reads = labels and spec.labels
        self._encoder = Encoder(self._grid, len(self._placed), width, self._reads)
        self.feature_size = self._encoder.feature_size + 2 * len(kinds)
        self._kind_head = _kind_head(self.feature_size, width, [kind.prior for kind in kinds])
        self._critic_inputs = CriticInputs(width, self._grid.cells)
        self.critic_size = self._critic_inputs.size + 2 * len(kinds)
        self._saliency = nn.Parameter(torch.full((len(self._placed), 1), saliency))
        self._reluctance = nn.Parameter(torch.full((len(self._placed), 1), reluctance))
        free = torch.tensor([0.0 if kind.placed else reluctance for kind in kinds])
        self._kind_reluctance = nn.Parameter(free)
        if self._reads:
            self._naming = nn.Parameter(_NAMING * _looked_for([kinds[index] for index in self._placed]))

    def act(self, observations: Sequence[Observation], rngs: Sequence[np.random.Generator]) -> list[Decision]:
        images = self._pictures.decoded([observation.image for observation in observations])
        read = [_read(observation) for observation in observations]
        scores = self._scores(images, read)
        kinds, cells = scores.kinds.double().cpu().numpy(), scores.cells.double().cpu().numpy()
        rows = zip(read, kinds, cells, rngs, strict=True)
        return [self._decide(each, kind, cell, rng) for each, kind, cell, rng in rows]

    def log_prob(self, observations: Sequence[Observation], actions: Sequence[Json]) -> torch.Tensor:
        """In training mode those of randomly shifted pictures. Raises ActionError for actions it never chooses."""
        pictures = self._pictures.remembered([observation.image for observation in observations])
        shifts: list[Shift] | None = None
        if self.training and self._shift:
            pictures, actions, shifts = shifted(pictures, actions, self._shift)
        read = [_read(observation) for observation in observations]
        choices = [self._grid.choice(action, each.texts) for each, action in zip(read, actions, strict=True)]
        places = [self._placed.index(choice.kind) if choice.kind in self._placed else -1 for choice in choices]
        kind = torch.tensor([choice.kind for choice in choices], dtype=torch.long, device=self._device)
        place = torch.tensor(places, dtype=torch.long, device=self._device)
        cell = torch.tensor([choice.cell for choice in choices], dtype=torch.long, device=self._device)
        scores = self._scores(pictures, read, shifts)
        of_kind = scores.kinds.gather(1, kind[:, None])[:, 0]
        of_cell = scores.cells[torch.arange(len(place), device=self._device), place.clamp(min=0), cell]
        return of_kind + torch.where(place >= 0, of_cell, torch.zeros_like(of_cell))

    def features(self, observations: Sequence[Observation]) -> torch.Tensor:
        with torch.no_grad():
            images = self._pictures.remembered([observation.image for observation in observations])
            seen, done = self._look(images, [_read(observation) for observation in observations], None)
            return _all_features(seen, done)

    def critic_inputs(self, observations: Sequence[Observation]) -> torch.Tensor:
        """Returns colours of the screen, words of the instruction, and kinds of the latest actions."""
        images = self._pictures.remembered([observation.image for observation in observations]).to(self._device)
        read = [_read(observation) for observation in observations]
        done = traces([each.memories for each in read], self._grid).to(self._device)
        seen = self._critic_inputs(images, [each.instruction for each in read])
        return torch.cat([seen, done.latest, done.here], dim=1)

    def probabilities(self, observations: Sequence[Observation]) -> list[ActionProbabilities]:
        """The cells are those of a tap."""
        images = self._pictures.decoded([observation.image for observation in observations])
        scores = self._scores(images, [_read(observation) for observation in observations])
        kinds, cells = scores.kinds.exp().tolist(), scores.cells[:, 0].exp().tolist()
        names = [kind.name for kind in self._grid.kinds]
        return [
            ActionProbabilities(dict(zip(names, of_kinds, strict=True)), self._grid.by_rows(of_cells))
            for of_kinds, of_cells in zip(kinds, cells, strict=True)
        ]

    @property
    def _device(self) -> torch.device:
        return next(self.parameters()).device

    def _look(self, images: torch.Tensor, read: Sequence[Read], shifts: Sequence[Shift] | None) -> tuple[Seen, Traces]:
        done = traces([each.memories for each in read], self._grid, shifts).to(self._device)
        instructions = [each.instruction for each in read]
        if not self._reads:
            return self._encoder(images.to(self._device), instructions, done.planes), done
        labels, memories = [each.labels for each in read], [each.memories for each in read]
        named = named_places(instructions, labels, memories, self._grid, shifts).to(self._device)
        seen = self._encoder(images.to(self._device), instructions, torch.cat([done.planes, named], dim=1))
        return seen._replace(cells=seen.cells + self._naming @ named.flatten(2)), done

    def _scores(self, images: torch.Tensor, read: Sequence[Read], shifts: Sequence[Shift] | None = None) -> Scores:
        seen, done = self._look(images, read, shifts)
        drawn = contrast(images.to(self._device)).flatten(1)[:, None]
        touched = done.planes[:, 1].flatten(1)[:, None]
        cells = seen.cells + self._saliency * drawn - self._reluctance * touched
        texts = torch.tensor([len(each.texts) for each in read], device=self._device)
        heads = self._kind_head(_all_features(seen, done)).unflatten(1, (2, -1))
        kinds = torch.where(texts[:, None] > 0, heads[:, 1], heads[:, 0]) - self._kind_reluctance * done.here
        parts = torch.tensor([-1 if kind.part is None else kind.part for kind in self._grid.kinds], device=self._device)
        kinds = kinds.masked_fill(parts[None] >= texts[:, None], float("-inf"))
        return Scores(kinds.log_softmax(dim=1), cells.log_softmax(dim=2))

    def _decide(self, read: Read, kinds: np.ndarray, cells: np.ndarray, rng: np.random.Generator) -> Decision:
        kind = draw(kinds, rng)
        log_prob, cell = kinds[kind], 0
        if kind in self._placed:
            of_cells = cells[self._placed.index(kind)]
            cell = draw(of_cells, rng)
            log_prob = log_prob + of_cells[cell]
        action = self._grid.action(Choice(kind, cell), read.texts)
        if self._reads and action["type"] == "tap":
            point = aimed(read.instruction, read.labels, read.memories, self._grid, cell)
            action |= {} if point is None else {"x": point[0], "y": point[1]}
        return Decision(action, float(log_prob))


def _read(observation: Observation) -> Read:
    instruction, memories, labels = recalled(observation.text)
    return Read(instruction, quoted(instruction), memories, labels)


def _useful(actions: DeviceActions, memory: int) -> list[str]:
    """Typing at a point is what the wrapper of an agent with memory makes of two actions."""
    points = ["type_at"] if memory and "type" in actions.useful else []
    return [*actions.useful, *points]


def _looked_for(placed: Sequence[Kind]) -> torch.Tensor:
    """Returns where an untrained policy prefers to act, for each kind that has a place: [P, planes of names]."""
    wanted = torch.zeros(len(placed), NAME_PLANES)
    for row, kind in enumerate(placed):
        if kind.action.type == "type_at":
            wanted[row, EDITABLE] = 1.0
        else:
            wanted[row, [NEXT, SHARED]] = torch.tensor([1.0, 0.5])
    return wanted


def _all_features(seen: Seen, done: Traces) -> torch.Tensor:
    return torch.cat([seen.features, done.latest, done.here], dim=1)


def _kind_head(features: int, width: int, priors: Sequence[float]) -> nn.Sequential:
    """Two layers that begin with the priors: the logits of all kinds without, then with a text to type."""
    last = nn.Linear(width, 2 * len(priors))
    nn.init.normal_(last.weight, std=0.01)
    last.bias.data.copy_(torch.tensor([*priors, *priors]).log())
    return nn.Sequential(nn.Linear(features, width), nn.ReLU(), last)
