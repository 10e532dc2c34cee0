"""Maximum likelihood of chosen actions: the actor's update that the algorithms share."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch

from digirl_dist.agent import Agent
from digirl_dist.errors import TrainingError
from digirl_dist.settings import ActorSettings
from digirl_dist.tasks import Json
from digirl_dist.trajectory import Observation


@dataclass(frozen=True, eq=False)
class Example:
    """An action worth repeating where it was taken; ``weight`` says how much."""

    observation: Observation
    action: Json
    weight: float = 1.0


def imitation_loss(log_probs: torch.Tensor, weights: torch.Tensor) -> torch.Tensor:
    """Weighted mean of the actions' negative log-likelihood; both arguments have shape [B]."""
    return -(weights * log_probs).sum() / weights.sum()


class Imitation:
    """Raises the probability of examples, in shuffled minibatches; keeps its optimiser and random state."""

    def __init__(self, agent: Agent, settings: ActorSettings, seed: int) -> None:
        self._agent = agent
        self._settings = settings
        self._optimizer = torch.optim.Adam(agent.parameters(), lr=settings.learning_rate)
        self._generator = torch.Generator().manual_seed(seed)

    def fit(self, rows: Sequence[Example]) -> float:
        """Up to ``epochs`` passes over the examples, ``max_examples`` in all; the mean loss (0 without examples).

        Raises TrainingError when the loss is not finite.
        """
        wanted = min(self._settings.epochs * len(rows), self._settings.max_examples)
        losses = []
        for batch in batches(len(rows), wanted, self._settings.batch_size, self._generator):
            losses.append(self._step([rows[index] for index in batch]))
        return sum(losses) / len(losses) if losses else 0.0

    def state_dict(self) -> dict[str, Any]:
        return {"optimizer": self._optimizer.state_dict(), "generator": self._generator.get_state()}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        self._optimizer.load_state_dict(state["optimizer"])
        self._generator.set_state(state["generator"])

    def _step(self, rows: Sequence[Example]) -> float:
        log_probs = self._agent.log_prob([row.observation for row in rows], [row.action for row in rows])
        weights = torch.tensor([row.weight for row in rows], dtype=log_probs.dtype, device=log_probs.device)
        loss = imitation_loss(log_probs, weights)
        value = finite(float(loss.detach()), "the actor's loss")
        self._optimizer.zero_grad()
        loss.backward()  # type: ignore[no-untyped-call]
        torch.nn.utils.clip_grad_norm_(self._agent.parameters(), self._settings.clip_norm)
        self._optimizer.step()
        return value


def batches(rows: int, wanted: int, size: int, generator: torch.Generator) -> list[list[int]]:
    """Minibatches of indices below ``rows``, ``wanted`` indices in all; each pass is shuffled anew."""
    if rows == 0:
        return []
    passes = [torch.randperm(rows, generator=generator) for _ in range(math.ceil(wanted / rows))]
    return [batch.tolist() for batch in torch.split(torch.cat(passes)[:wanted], size)]


def finite(value: float, name: str) -> float:
    """``value`` itself. Raises TrainingError, naming it, when it is infinite or no number."""
    if math.isfinite(value):
        return value
    raise TrainingError(f"{name} became {value}; lower the learning rate, or look for actions of probability 0")
