"""A small policy for Gymnasium spaces: vectors and pictures in; Discrete or Box actions out, or several of them."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Protocol

import numpy as np
import torch
from torch import nn

from digirl_dist.agent import ActionProbabilities
from digirl_dist.agent.pixels import Pictures, fitted_size
from digirl_dist.agent.sampling import draw
from digirl_dist.emulator import BoxActions, DeviceActions, DiscreteActions, EmulatorSpec, ProductActions
from digirl_dist.errors import AgentError, TrajectoryError
from digirl_dist.trajectory import Decision, Observation
from digirl_dist.types import Json

_STRIDE = 4
_INITIAL_STD = 0.5
"""Initial standard deviation of Box actions, as a share of half their range."""


class GenericPolicy(nn.Module):
    """Fulfils ``Agent`` for every environment whose actions are Discrete, Box or a product; texts are not read."""

    def __init__(self, spec: EmulatorSpec, *, width: int, short_side: int) -> None:
        """The values are the settings of ``agent=generic``."""
        super().__init__()
        self.spec = spec
        self._encoder = _Encoder(spec, width, short_side)
        self.feature_size = self._encoder.feature_size
        self.critic_size = self._encoder.critic_size
        assert not isinstance(spec.actions, DeviceActions)  # as the plugin's ``suits`` says
        self._head = _head(self.feature_size, spec.actions)

    def act(self, observations: Sequence[Observation], rngs: Sequence[np.random.Generator]) -> list[Decision]:
        seen = self._encoder.inputs(observations, training=False)
        parameters = self._head(self._encoder(seen)).double().cpu().numpy()
        return [self._head.sample(row, rng) for row, rng in zip(parameters, rngs, strict=True)]

    def log_prob(self, observations: Sequence[Observation], actions: Sequence[Json]) -> torch.Tensor:
        """Of a Discrete action its log-probability; of a Box action the log-density before the emulator clips it; of
        several the sum."""
        return self._head.log_prob(self._head(self._encoder(self.inputs(observations))), actions)

    def features(self, observations: Sequence[Observation]) -> torch.Tensor:
        with torch.no_grad():
            features: torch.Tensor = self._encoder(self.inputs(observations))
            return features

    def critic_inputs(self, observations: Sequence[Observation]) -> torch.Tensor:
        """Vectors as they are, beside the features of pictures."""
        with torch.no_grad():
            seen: torch.Tensor = self._encoder(self.inputs(observations), plain_vectors=True)
            return seen

    def probabilities(self, observations: Sequence[Observation]) -> list[ActionProbabilities]:
        """Raises AgentError unless the actions are Discrete: others have densities, or several parts."""
        if not isinstance(self.spec.actions, DiscreteActions):
            raise AgentError("only Discrete actions have probabilities that can be listed")
        rows = self._head(self._encoder(self._encoder.inputs(observations, training=False))).exp().tolist()
        return [ActionProbabilities({str(action): share for action, share in enumerate(row)}) for row in rows]

    def inputs(self, observations: Sequence[Observation]) -> Inputs:
        """What it sees of B observations that it learns from."""
        return self._encoder.inputs(observations, training=True)


@dataclass(frozen=True)
class Inputs:
    """B observations as a network sees them, on the CPU; None for what the emulator does not show."""

    vectors: torch.Tensor | None
    """float32, shape [B, N]."""
    pixels: torch.Tensor | None
    """uint8, shape [B, 3, height, width]."""


class _Head(Protocol):
    """A distribution over actions whose parameters, shape [B, P], are computed from features."""

    def __call__(self, features: torch.Tensor) -> torch.Tensor: ...

    def sample(self, parameters: np.ndarray, rng: np.random.Generator) -> Decision: ...

    def log_prob(self, parameters: torch.Tensor, actions: Sequence[Json]) -> torch.Tensor: ...


def _head(features: int, actions: DiscreteActions | BoxActions | ProductActions) -> _Categorical | _Gaussian | _Product:
    match actions:
        case DiscreteActions(n):
            return _Categorical(features, n)
        case BoxActions(low, high):
            return _Gaussian(features, low, high)
        case ProductActions(parts):
            return _Product(features, parts)


class _Categorical(nn.Module):
    """Parameters are the log-probabilities of the n actions."""

    def __init__(self, features: int, n: int) -> None:
        super().__init__()
        self._logits = _nearly_zero(nn.Linear(features, n))

    def forward(self, features: torch.Tensor) -> torch.Tensor:
        logits: torch.Tensor = self._logits(features)
        return logits.log_softmax(dim=1)

    def sample(self, parameters: np.ndarray, rng: np.random.Generator) -> Decision:
        action = draw(parameters, rng)
        return Decision(action, float(parameters[action]))

    def log_prob(self, parameters: torch.Tensor, actions: Sequence[Json]) -> torch.Tensor:
        return parameters.gather(1, torch.tensor(actions, device=parameters.device)[:, None])[:, 0]


class _Gaussian(nn.Module):
    """Independent normal distributions; parameters are the means and then the logarithms of the deviations.

    Means start at the middle of the bounds, deviations at ``_INITIAL_STD`` of half their range (of 1 without bounds).
    """

    def __init__(self, features: int, low: Sequence[float], high: Sequence[float]) -> None:
        super().__init__()
        middle, reach = middle_and_reach(low, high)
        self._middle: torch.Tensor
        self._reach: torch.Tensor
        self.register_buffer("_middle", torch.tensor(middle, dtype=torch.float32), persistent=False)
        self.register_buffer("_reach", torch.tensor(reach, dtype=torch.float32), persistent=False)
        self._mean = _nearly_zero(nn.Linear(features, len(low)))
        self._log_std = nn.Parameter(torch.full((len(low),), math.log(_INITIAL_STD)))

    def forward(self, features: torch.Tensor) -> torch.Tensor:
        mean = self._middle + self._reach * self._mean(features)
        return torch.cat([mean, (self._log_std + self._reach.log()).expand_as(mean)], dim=1)

    def sample(self, parameters: np.ndarray, rng: np.random.Generator) -> Decision:
        mean, log_std = np.split(parameters, 2)
        noise = rng.standard_normal(mean.shape)
        log_prob = -(0.5 * noise**2 + log_std + 0.5 * math.log(2 * math.pi)).sum()
        return Decision((mean + np.exp(log_std) * noise).tolist(), float(log_prob))

    def log_prob(self, parameters: torch.Tensor, actions: Sequence[Json]) -> torch.Tensor:
        mean, log_std = parameters.chunk(2, dim=1)
        chosen = torch.tensor(actions, dtype=mean.dtype, device=mean.device)
        noise = (chosen - mean) / log_std.exp()
        return -(0.5 * noise.square() + log_std + 0.5 * math.log(2 * math.pi)).sum(dim=1)


class _Product(nn.Module):
    """Independent parts; parameters are those of each part, one after the other."""

    def __init__(self, features: int, parts: Sequence[DiscreteActions | BoxActions]) -> None:
        super().__init__()
        self._parts = nn.ModuleList([_head(features, part) for part in parts])
        sizes = [part.n if isinstance(part, DiscreteActions) else 2 * len(part.low) for part in parts]
        self._ends = np.cumsum(sizes).tolist()

    def forward(self, features: torch.Tensor) -> torch.Tensor:
        return torch.cat([part(features) for part in self._parts], dim=1)

    def sample(self, parameters: np.ndarray, rng: np.random.Generator) -> Decision:
        split = np.split(parameters, self._ends[:-1])
        decisions = [part.sample(own, rng) for part, own in zip(self._heads, split, strict=True)]
        return Decision([each.action for each in decisions], sum(each.log_prob for each in decisions))

    def log_prob(self, parameters: torch.Tensor, actions: Sequence[Json]) -> torch.Tensor:
        split = torch.tensor_split(parameters, self._ends[:-1], dim=1)
        each = [
            part.log_prob(own, [action[number] for action in actions])
            for number, (part, own) in enumerate(zip(self._heads, split, strict=True))
        ]
        return torch.stack(each).sum(dim=0)

    @property
    def _heads(self) -> Iterator[_Head]:
        yield from self._parts  # type: ignore[misc]


class _Encoder(nn.Module):
    """From B observations to features [B, F]; vectors go through an MLP, pictures through a small CNN."""

    def __init__(self, spec: EmulatorSpec, width: int, short_side: int) -> None:
        super().__init__()
        self._vector_size = spec.vector_size
        self._vector = None
        self._pictures = None
        if spec.vector_size:
            self._vector = nn.Sequential(
                nn.Linear(spec.vector_size, width), nn.Tanh(), nn.Linear(width, width), nn.Tanh()
            )
        if spec.image_size is not None:
            size = fitted_size(spec.image_size, short_side, _STRIDE)
            self._pictures = Pictures(size)
            self._vision = _vision(size, width)
        of_pictures = width if self._pictures is not None else 0
        self.feature_size = of_pictures + (width if self._vector is not None else 0)
        self.critic_size = of_pictures + spec.vector_size

    def inputs(self, observations: Sequence[Observation], training: bool) -> Inputs:
        vectors = pixels = None
        if self._vector is not None:
            rows = [self._checked(seen.vector) for seen in observations]
            vectors = torch.from_numpy(np.array(rows, np.float32).reshape(-1, self._vector_size))
        if self._pictures is not None:
            images = [observation.image for observation in observations]
            pixels = self._pictures.remembered(images) if training else self._pictures.decoded(images)
        return Inputs(vectors, pixels)

    def _checked(self, vector: np.ndarray | None) -> np.ndarray:
        """Raises TrajectoryError for a vector that is not as wide as the emulator told."""
        if vector is None or np.shape(vector) != (self._vector_size,):
            shown = "no vector" if vector is None else f"a vector of shape {list(np.shape(vector))}"
            raise TrajectoryError(f"an observation has {shown}; this agent needs {self._vector_size} numbers")
        return vector

    def forward(self, inputs: Inputs, plain_vectors: bool = False) -> torch.Tensor:
        parts = []
        device = next(self.parameters()).device
        if self._vector is not None and inputs.vectors is not None:
            vectors = inputs.vectors.to(device)
            parts.append(vectors if plain_vectors else self._vector(vectors))
        if self._pictures is not None and inputs.pixels is not None:
            parts.append(self._vision(inputs.pixels.to(device).float() / 127.5 - 1))
        return torch.cat(parts, dim=1)


def _vision(size: tuple[int, int], width: int) -> nn.Sequential:
    layers = nn.Sequential(
        nn.Conv2d(3, 16, 8, stride=4), nn.ReLU(), nn.Conv2d(16, 32, 4, stride=2), nn.ReLU(), nn.Flatten()
    )
    return nn.Sequential(*layers, nn.Linear(layers(torch.zeros(1, 3, *size)).shape[1], width), nn.Tanh())


def middle_and_reach(low: Sequence[float], high: Sequence[float]) -> tuple[np.ndarray, np.ndarray]:
    """The middle of each action's bounds and the way from there to either; 0 and 1 where a bound is infinite, and a way
    of 1 where both are the same."""
    bounds = np.array([low, high], np.float64)
    finite = np.isfinite(bounds).all(axis=0)
    middle = np.where(finite, bounds.sum(axis=0, where=np.isfinite(bounds)) / 2, 0.0)
    reach = np.where(finite, np.nan_to_num(bounds[1] - middle, posinf=1.0), 1.0)
    return middle, np.where(reach > 0, reach, 1.0)


def _nearly_zero(layer: nn.Linear) -> nn.Linear:
    """Weights that make the first policy nearly uniform."""
    nn.init.normal_(layer.weight, std=0.01)
    nn.init.zeros_(layer.bias)
    return layer
