"""Maximum likelihood of chosen actions: the actor's update that the imitating algorithms share."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import nn

from digirl_dist.agent import Agent, contract
from digirl_dist.algorithm.losses import imitation_loss
from digirl_dist.algorithm.optimizer import Fit, MinibatchOptimizer, OptimizerIsTheState, totals
from digirl_dist.algorithm.table import Row, learned_from
from digirl_dist.parallel.peers import ALONE, Peers
from digirl_dist.settings import ActorSettings

_ROWS_AT_ONCE = 256


class Imitation(OptimizerIsTheState):
    """Raises the probability of actions, in shuffled minibatches; keeps its optimiser and random state.

    The agent fits in training mode, where it may regularise, and is left in evaluation mode.
    """

    def __init__(self, agent: Agent, settings: ActorSettings, seed: int, peers: Peers = ALONE) -> None:
        self._agent = agent
        self._peers = peers
        self._optimizer = MinibatchOptimizer(agent.parameters(), settings, seed, "the actor's loss", peers)

    def fit(self, rows: Sequence[Row], share: float = 1.0) -> Fit:
        """Makes one iteration's minibatches, or a ``share`` of them. Marks the rows learned.

        The loss is 0 without rows of any weight. Raises TrainingError.
        """
        rows = [row for row in rows if row.weight]  # the others cost passes, and teach nothing
        self._agent.train()
        fit = self._optimizer.fit(
            len(rows),
            loss_of=lambda batch: self._loss_of([rows[place] for place in batch]),
            weight_of=lambda batch: sum(abs(rows[place].weight) for place in batch),
            share=share,
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
        log_probs = all_log_probs(self._agent, rows, self._peers)[0].sum(dim=1).double()
        if rows:
            loss = float(imitation_loss(log_probs, _weights(rows, log_probs)))
        found = totals({"loss": weight * loss, "weight": weight}, self._peers)
        return found["loss"] / found["weight"] if found["weight"] else 0.0

    def _loss_of(self, rows: Sequence[Row]) -> torch.Tensor:
        observations, actions = [row.observation for row in rows], [row.action for row in rows]
        log_probs = contract.log_prob(self._agent, observations, actions)
        return imitation_loss(log_probs, _weights(rows, log_probs))


def all_log_probs(
    agent: Agent, rows: Sequence[Row], peers: Peers, drawn: Sequence[list[int]] = ()
) -> tuple[torch.Tensor, torch.Tensor]:
    """Returns log-probabilities of any number of rows, and the mask of tokens, both [N, T], without gradient.

    A bounded number at once, and spread over the ranks (see ``Peers.spread``): every rank must call it.
    """

    def compute(places: Sequence[int]) -> torch.Tensor:
        parts = []
        for first in range(0, len(places), _ROWS_AT_ONCE):
            found, mask = log_probs_of(agent, [rows[place] for place in places[first : first + _ROWS_AT_ONCE]])
            parts.append(torch.cat([mask.sum(dim=1, keepdim=True), found], dim=1).cpu())
        width = max(part.shape[1] for part in parts)
        return torch.cat([nn.functional.pad(part, (0, width - part.shape[1])) for part in parts])

    with torch.no_grad():
        found = peers.spread(len(rows), compute, drawn)
    return found[:, 1:], torch.arange(found.shape[1] - 1) < found[:, :1]


def log_probs_of(agent: Agent, rows: Sequence[Row]) -> tuple[torch.Tensor, torch.Tensor]:
    """Of the tokens of some rows, and the mask of tokens, both [B, T]: one call of the agent."""
    return contract.token_log_probs(agent, [row.observation for row in rows], [row.action for row in rows])


def _weights(rows: Sequence[Row], like: torch.Tensor) -> torch.Tensor:
    return torch.tensor([row.weight for row in rows], dtype=like.dtype, device=like.device)
