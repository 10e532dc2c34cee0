"""Maximum likelihood of chosen actions: the actor's update that the imitating algorithms share."""

from __future__ import annotations

import math
from collections.abc import Sequence

import torch

from digirl_dist.agent import Agent, contract
from digirl_dist.algorithm.optimizer import Fit, MinibatchOptimizer, OptimizerIsTheState, totals
from digirl_dist.algorithm.table import Row, learned_from
from digirl_dist.parallel.peers import ALONE, Peers
from digirl_dist.settings import ActorSettings

_ROWS_AT_ONCE = 256
_LIKELIEST = -1e-6
"""Log-probability of an action to avoid beyond which the logarithm of what is left continues as a straight line."""


def imitation_loss(log_probs: torch.Tensor, weights: torch.Tensor) -> torch.Tensor:
    """Weighted mean of −log π, and where a weight is below 0 of −log(1 − π); both arguments have shape [B].

    The latter is the unlikelihood of Welleck et al. 2019 (arXiv 1908.04319): it matters as far as the action is likely.
    """
    bounded = log_probs.clamp(max=_LIKELIEST)
    avoided = (-torch.expm1(bounded)).log() + (log_probs - bounded) / math.expm1(_LIKELIEST)
    return -(weights.abs() * torch.where(weights < 0, avoided, log_probs)).sum() / weights.abs().sum()


class Imitation(OptimizerIsTheState):
    """Raises the probability of actions, in shuffled minibatches; keeps its optimiser and random state.

    The agent fits in training mode, where it may regularise, and is left in evaluation mode.
    """

    def __init__(self, agent: Agent, settings: ActorSettings, seed: int, peers: Peers = ALONE) -> None:
        self._agent = agent
        self._peers = peers
        self._optimizer = MinibatchOptimizer(agent.parameters(), settings, seed, "the actor's loss", peers)

    def fit(self, rows: Sequence[Row]) -> Fit:
        """Makes one iteration's minibatches and marks the rows that were learned from. Raises TrainingError.

        The loss is 0 without rows of any weight.
        """
        rows = [row for row in rows if row.weight]  # the others cost passes, and teach nothing
        self._agent.train()
        fit = self._optimizer.fit(
            len(rows),
            loss_of=lambda batch: self._loss_of([rows[place] for place in batch]),
            weight_of=lambda batch: sum(abs(rows[place].weight) for place in batch),
        )
        self._agent.train(False)
        learned_from(rows, fit.learned)
        return fit

    def measure(self, rows: Sequence[Row]) -> float:
        """Returns the loss of all rows of all ranks together, without learning; 0 without rows of any weight.

        Every rank must call it.
        """
        rows, loss = [row for row in rows if row.weight], 0.0
        weight = sum(abs(row.weight) for row in rows)
        if rows:
            with torch.no_grad():
                log_probs = log_probs_in_parts(self._agent, rows).double()
                loss = float(imitation_loss(log_probs, _weights(rows, log_probs)))
        found = totals({"loss": weight * loss, "weight": weight}, self._peers)
        return found["loss"] / found["weight"] if found["weight"] else 0.0

    def _loss_of(self, rows: Sequence[Row]) -> torch.Tensor:
        log_probs = log_probs_of(self._agent, rows)
        return imitation_loss(log_probs, _weights(rows, log_probs))


def log_probs_in_parts(agent: Agent, rows: Sequence[Row]) -> torch.Tensor:
    """Of any number of rows, shape [N], a bounded number at once. Not empty."""
    parts = [rows[first : first + _ROWS_AT_ONCE] for first in range(0, len(rows), _ROWS_AT_ONCE)]
    return torch.cat([log_probs_of(agent, part) for part in parts])


def log_probs_of(agent: Agent, rows: Sequence[Row]) -> torch.Tensor:
    """Of the rows of a minibatch, shape [B]: one call of the agent."""
    return contract.log_prob(agent, [row.observation for row in rows], [row.action for row in rows])


def _weights(rows: Sequence[Row], like: torch.Tensor) -> torch.Tensor:
    return torch.tensor([row.weight for row in rows], dtype=like.dtype, device=like.device)
