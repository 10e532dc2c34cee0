"""Proximal policy optimisation with a clipped objective (arXiv 1707.06347), on whole episodes or pieces of them."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import nn

from digirl_dist.agent import Agent, contract, critic
from digirl_dist.algorithm.advantages import unit
from digirl_dist.algorithm.losses import clipped_gains, ratios_of, with_entropy
from digirl_dist.algorithm.optimizer import MinibatchOptimizer, totals
from digirl_dist.algorithm.options import PpoOptions
from digirl_dist.algorithm.table import KEPT, Learned, Row, learned_from
from digirl_dist.algorithm.values import looked_at
from digirl_dist.parallel.peers import ALONE, Peers
from digirl_dist.trajectory import Observation, Trajectory
from digirl_dist.types import Json

LOSS = "the PPO loss"
"""Its name in errors."""
_WIDTH = 64
"""Units of a hidden layer of the value function."""


@dataclass(frozen=True, eq=False)
class Rows:
    """The N steps that an update learns from; tensors have shape [N] but for ``seen`` [N, V]."""

    observations: Sequence[Observation]
    actions: Sequence[Json]
    log_probs: torch.Tensor
    seen: torch.Tensor
    """What the value function looks at."""
    advantages: torch.Tensor
    returns: torch.Tensor
    """In the value function's scale."""


class PPO:
    """Fulfils ``Algorithm``; learns from ``fresh`` alone.

    The last step of a trajectory may be neither terminated nor truncated: then it is a piece of an episode that goes
    on, and what comes after it is estimated.
    """

    def __init__(
        self,
        agent: Agent,
        settings: PpoOptions,
        seed: int,
        peers: Peers = ALONE,
    ) -> None:
        self._agent = agent
        self._settings = settings
        self._peers = peers
        self._device = next(agent.parameters()).device
        _, self._input_size = critic(agent)
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(seed)
            self._value = _value_function(self._input_size).to(self._device)
        self._scale = ReturnScale(peers)
        parameters = [*agent.parameters(), *self._value.parameters()]
        self._optimizer = MinibatchOptimizer(parameters, settings, seed, LOSS, peers)

    def update(self, fresh: Sequence[Trajectory], replay: Sequence[Trajectory]) -> Learned:
        """The table has the advantages before they are normalised over all rows."""
        self._agent.train(False)  # ratios must be exact
        table: list[Row] = []
        rows, rate = self._rows(fresh, table), self._optimizer.learning_rate
        fit = self._optimizer.fit(len(table), lambda batch: self._loss(rows, batch), fresh=len(table))
        learned_from(table, fit.learned)
        return Learned({"ppo_loss": fit.loss, "skipped_steps": float(fit.skipped), "learning_rate": rate}, table)

    def state_dict(self) -> dict[str, Any]:
        return {
            "value": self._value.state_dict(),
            "optimizer": self._optimizer.state_dict(),
            "returns": self._scale.sums,
        }

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        self._value.load_state_dict(state["value"])
        self._optimizer.load_state_dict(state["optimizer"])
        self._scale.sums = state["returns"]

    def _loss(self, rows: Rows, batch: list[int]) -> torch.Tensor:
        observations, actions = [rows.observations[k] for k in batch], [rows.actions[k] for k in batch]
        log_probs = contract.log_prob(self._agent, observations, actions)
        ratios, clip = ratios_of(log_probs - rows.log_probs[batch]), self._settings.clip_ratio
        policy = clipped_gains(ratios, rows.advantages[batch], clip, clip).mean()
        value = (self._value(rows.seen[batch])[:, 0] - rows.returns[batch]).square().mean()
        loss: torch.Tensor = self._settings.value_weight * value - policy
        return loss

    def _rows(self, fresh: Sequence[Trajectory], table: list[Row]) -> Rows:
        """Fills the table, too."""
        inputs, advantages, returns = [], [], []
        for piece, seen in zip(fresh, looked_at(self._agent, fresh, self._peers), strict=True):
            values = self._values(seen)
            estimate = self._advantages(piece, values)
            inputs.append(seen[:-1])
            advantages.append(torch.from_numpy(estimate))
            returns.append(torch.from_numpy(estimate + values[:-1]))
            reason = "every step is learned from, as much as its advantage says"
            for place, (advantage, value) in enumerate(zip(estimate.tolist(), values.tolist(), strict=False)):
                table.append(Row(piece, place, KEPT, reason, 1.0, advantage, value))
        device = self._device
        none = torch.zeros(0, dtype=torch.float64)
        targets = self._scale.add(torch.cat([none, *returns]))
        log_probs = torch.tensor([step.log_prob for piece in fresh for step in piece.steps], device=device)
        normal = normalised(torch.cat([none, *advantages]), self._peers).float().to(device)
        if weight := self._settings.entropy_weight:
            found = totals({"surprise": -float(log_probs.sum()), "steps": len(log_probs)}, self._peers)
            normal = with_entropy(normal, log_probs, found["surprise"] / max(1.0, found["steps"]), weight)
        return Rows(
            [row.observation for row in table],
            [row.action for row in table],
            log_probs,
            torch.cat([torch.zeros(0, self._input_size), *inputs]).to(device),
            normal,
            targets.float().to(device),
        )

    @torch.no_grad()
    def _values(self, seen: torch.Tensor) -> np.ndarray:
        return self._scale.returns(self._value(seen.to(self._device))[:, 0].double().cpu().numpy())

    def _advantages(self, piece: Trajectory, values: np.ndarray) -> np.ndarray:
        if piece.steps[-1].terminated:
            values = np.append(values[:-1], 0.0)  # nothing can come after the end
        rewards = np.array([step.reward for step in piece.steps])
        return generalized_advantages(rewards, values, self._settings.discount, self._settings.lam)


class ReturnScale:
    """Mean and standard deviation of all returns so far, over all ranks; the value function learns returns in units of
    these, so its loss, and its share of a clipped gradient, do not depend on the size of rewards."""

    def __init__(self, peers: Peers) -> None:
        self._peers = peers
        self.sums = torch.zeros(3, dtype=torch.float64)
        """Of the returns' number, of them, and of their squares."""

    def add(self, returns: torch.Tensor) -> torch.Tensor:
        """Counts ``returns``, shape [N], and gives them in the new units. All ranks must call it."""
        self.sums = self.sums + self._peers.total(_sums(returns))
        mean, size = _mean_and_unit(self.sums)
        return (returns - mean) / size

    def returns(self, values: np.ndarray) -> np.ndarray:
        """From units of the value function to those of rewards."""
        mean, size = _mean_and_unit(self.sums) if self.sums[0] else (0.0, 1.0)
        return np.asarray(mean + size * values)


def _value_function(size: int) -> nn.Sequential:
    first, second = nn.Linear(size, _WIDTH), nn.Linear(_WIDTH, _WIDTH)
    return nn.Sequential(first, nn.Tanh(), second, nn.Tanh(), nn.Linear(_WIDTH, 1))


def generalized_advantages(rewards: np.ndarray, values: np.ndarray, discount: float, lam: float) -> np.ndarray:
    """Σ_k (discount · lam)^k δ_h+k with δ_h = r_h + discount V(s_h+1) − V(s_h) (arXiv 1506.02438, equation 16).

    ``rewards`` has shape [H], ``values`` [H + 1]; the result [H].
    """
    deltas = rewards + discount * values[1:] - values[:-1]
    advantages = np.zeros_like(deltas)
    following = 0.0
    for step in reversed(range(len(deltas))):
        following = deltas[step] + discount * lam * following
        advantages[step] = following
    return np.asarray(advantages)


def normalised(values: torch.Tensor, peers: Peers) -> torch.Tensor:
    """``values``, shape [N], with mean 0 and standard deviation 1 over the rows of all ranks."""
    mean, size = _mean_and_unit(peers.total(_sums(values)))
    return (values - mean) / size


def _sums(values: torch.Tensor) -> torch.Tensor:
    return torch.stack([values.new_tensor(len(values)), values.sum(), values.square().sum()])


def _mean_and_unit(sums: torch.Tensor) -> tuple[float, float]:
    count, total, squares = sums.tolist()
    mean, square = total / max(count, 1.0), squares / max(count, 1.0)
    return mean, unit(math.sqrt(max(square - mean * mean, 0.0)), math.sqrt(square))
