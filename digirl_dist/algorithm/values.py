"""Value functions that answer one question: will this end in success?"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import nn

from digirl_dist.agent import Agent, contract, critic
from digirl_dist.algorithm.optimizer import Fit, MinibatchOptimizer
from digirl_dist.parallel.peers import ALONE, Peers
from digirl_dist.settings import ValueSettings
from digirl_dist.trajectory import Trajectory, seen_at

_BINS = 10
_WIDTH = 128
"""Units of a critic's hidden layer."""


class Measured(NamedTuple):
    """How well a value function does on rows that train nothing."""

    loss: float
    """Mean of a critic's."""
    accuracy: float
    """How often the critics together are right."""
    calibration_error: float


def looked_at(agent: Agent, episodes: Sequence[Trajectory], peers: Peers) -> Sequence[torch.Tensor]:
    """Returns what value functions read of each episode of H steps, [H + 1, V]. Every rank must call it."""
    places = [(episode, place) for episode in episodes for place in range(len(episode.steps) + 1)]

    def compute(rows: Sequence[int]) -> torch.Tensor:
        return contract.inputs(agent, [seen_at(*places[row]) for row in rows]).cpu()

    found = peers.spread(len(places), compute) if places else torch.empty(0, critic(agent)[1])
    return torch.split(found, [len(episode.steps) + 1 for episode in episodes])


class SuccessValue:
    """The probability of success as a two-class problem on given features, with optimiser and random state.

    What it learns from is 1 for a success and 0 for a failure, or between them for what was done in part.

    Classifiers trained by cross-entropy in place of a regression, as in DigiRL (arXiv 2406.11896, section 4). Of
    several ``critics``, which differ in their first weights, the most doubtful one counts.
    """

    def __init__(
        self, feature_size: int, settings: ValueSettings, seed: int, peers: Peers = ALONE, critics: int = 1
    ) -> None:
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(seed)
            self._critics = nn.ModuleList(_critic(feature_size) for _ in range(critics))
        self._peers = peers
        what = "a value function's loss"
        self._optimizer = MinibatchOptimizer(self._critics.parameters(), settings, seed, what, peers)

    def __call__(self, features: torch.Tensor) -> torch.Tensor:
        """Probability of success, shape [B], of features [B, F]: the minimum over the critics."""
        with torch.no_grad():
            return torch.stack([critic(features).softmax(dim=1)[:, 1] for critic in self._critics]).amin(dim=0)

    def fit(self, features: torch.Tensor, successes: Sequence[float]) -> Fit:
        """Some passes over the rows in shuffled minibatches; the loss is the mean of a critic (0 without rows).

        Raises TrainingError when the loss is not finite in most of them.
        """
        labels = torch.tensor(successes, dtype=torch.float)
        fit = self._optimizer.fit(len(labels), lambda batch: self._loss(features[batch], labels[batch]))
        return fit._replace(loss=fit.loss / len(self._critics))

    def measure(self, features: torch.Tensor, successes: Sequence[float]) -> Measured | None:
        """What is found of these rows of all ranks; None if there are none. Every rank must call it."""
        labels = torch.tensor(successes, dtype=torch.float)
        with torch.no_grad():
            loss = float(self._loss(features, labels)) * len(labels) / len(self._critics) if successes else 0.0
        values = self(features)
        right = float(((values > 0.5) == (labels > 0.5)).sum())
        gaps = calibration_gaps(values.double().numpy(), np.array(successes, float))
        sums = torch.tensor([len(labels), loss, right, *gaps], dtype=torch.float64)
        count, *found = self._peers.total(sums).tolist()
        return Measured(found[0] / count, found[1] / count, calibration_error(found[2:], count)) if count else None

    def state_dict(self) -> dict[str, Any]:
        return {"critics": self._critics.state_dict(), "optimizer": self._optimizer.state_dict()}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        self._critics.load_state_dict(state["critics"])
        self._optimizer.load_state_dict(state["optimizer"])

    def _loss(self, features: torch.Tensor, labels: torch.Tensor) -> torch.Tensor:
        return torch.stack([two_class_loss(critic(features), labels) for critic in self._critics]).sum()


def calibration_gaps(probabilities: np.ndarray, successes: np.ndarray) -> np.ndarray:
    """Of ten equal bins, by how much more often its probabilities came true than they said: sums, shape [10]."""
    places = np.minimum((probabilities * _BINS).astype(int), _BINS - 1)
    return np.bincount(places, successes - probabilities, minlength=_BINS)


def calibration_error(gaps: Iterable[float], count: float) -> float:
    """Expected calibration error of ``count`` probabilities, from their gaps; 0 if each comes true as often as it says.

    Σ over bins of n/N · |share of successes − mean probability| (arXiv 1706.04599, equation 3).
    """
    return sum(map(abs, gaps)) / count


def two_class_loss(logits: torch.Tensor, labels: torch.Tensor) -> torch.Tensor:
    """Mean cross-entropy of logits [B, 2] against labels [B] from 0 (failed) to 1 (succeeded)."""
    return nn.functional.cross_entropy(logits, torch.stack([1 - labels, labels], dim=1).to(logits))


def _critic(feature_size: int) -> nn.Sequential:
    last = nn.Linear(_WIDTH, 2)
    nn.init.zeros_(last.weight)  # nothing is known yet: 0.5 everywhere
    nn.init.zeros_(last.bias)
    return nn.Sequential(nn.LayerNorm(feature_size), nn.Linear(feature_size, _WIDTH), nn.ReLU(), last)
