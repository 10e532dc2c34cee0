"""Value functions that answer one question: will this end in success?"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch import nn

from digirl_dist.algorithm.imitation import batches, finite
from digirl_dist.settings import ValueSettings


class SuccessValue:
    """The probability of success as a two-class problem on given features, with optimiser and random state.

    A classifier trained by cross-entropy in place of a regression, as in DigiRL (arXiv 2406.11896, section 4.2).
    """

    def __init__(self, feature_size: int, settings: ValueSettings, seed: int) -> None:
        self._settings = settings
        self._generator = torch.Generator().manual_seed(seed)
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(seed)
            self._network = nn.Sequential(
                nn.LayerNorm(feature_size),
                nn.Linear(feature_size, settings.width),
                nn.ReLU(),
                nn.Linear(settings.width, 2),
            )
        for parameter in self._network[-1].parameters():
            nn.init.zeros_(parameter)  # nothing is known yet: 0.5 everywhere
        self._optimizer = torch.optim.Adam(self._network.parameters(), lr=settings.learning_rate)

    def __call__(self, features: torch.Tensor) -> torch.Tensor:
        """Probability of success, shape [B], of features [B, F]."""
        with torch.no_grad():
            logits: torch.Tensor = self._network(features)
            return logits.softmax(dim=1)[:, 1]

    def fit(self, features: torch.Tensor, succeeded: Sequence[bool]) -> float:
        """Some passes over the rows in shuffled minibatches; the mean loss (0 without rows).

        Raises TrainingError when the loss is not finite.
        """
        labels = torch.tensor(succeeded, dtype=torch.long)
        wanted = self._settings.epochs * len(labels)
        chosen = batches(len(labels), wanted, self._settings.batch_size, self._generator)
        losses = [self._step(features[batch], labels[batch]) for batch in chosen]
        return sum(losses) / len(losses) if losses else 0.0

    def state_dict(self) -> dict[str, Any]:
        return {
            "network": self._network.state_dict(),
            "optimizer": self._optimizer.state_dict(),
            "generator": self._generator.get_state(),
        }

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        self._network.load_state_dict(state["network"])
        self._optimizer.load_state_dict(state["optimizer"])
        self._generator.set_state(state["generator"])

    def _step(self, features: torch.Tensor, labels: torch.Tensor) -> float:
        loss = two_class_loss(self._network(features), labels)
        value = finite(float(loss.detach()), "a value function's loss")
        self._optimizer.zero_grad()
        loss.backward()  # type: ignore[no-untyped-call]
        self._optimizer.step()
        return value


def two_class_loss(logits: torch.Tensor, labels: torch.Tensor) -> torch.Tensor:
    """Mean cross-entropy of logits [B, 2] against labels [B] in {0: failed, 1: succeeded}."""
    return nn.functional.cross_entropy(logits, labels)
