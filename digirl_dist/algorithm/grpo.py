"""GRPO: climb towards the episodes that came out better than others of the same task (arXiv 2402.03300)."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch

from digirl_dist.agent import Agent
from digirl_dist.algorithm.advantages import group_advantages
from digirl_dist.algorithm.imitation import Example, log_probs_of
from digirl_dist.algorithm.optimizer import MinibatchOptimizer
from digirl_dist.algorithm.plugins.grpo import GrpoSettings
from digirl_dist.parallel.peers import ALONE, Peers
from digirl_dist.trajectory import Trajectory


@dataclass(frozen=True, eq=False)
class Batch:
    """What the objective is computed from, all of shape [B]."""

    old: torch.Tensor
    """Log-probabilities that the ratios are taken to."""
    advantages: torch.Tensor
    weights: torch.Tensor
    """What each step counts for: 1/H of its episode, times the correction for an older policy."""

    def __getitem__(self, rows: list[int]) -> Batch:
        return Batch(self.old[rows], self.advantages[rows], self.weights[rows])


class Grpo:
    """Fulfils ``Algorithm``. Learns from the fresh episodes alone, each compared with its group.

    Steps that an older policy took (``collect_ahead``) are corrected: ratios are taken to the policy as it is before
    the update, and its own ratio to the older one, truncated, becomes a weight (the decoupled objective of arXiv
    2110.00641, as used for language models in arXiv 2505.24298).
    """

    def __init__(self, agent: Agent, settings: GrpoSettings, seed: int, peers: Peers = ALONE) -> None:
        self._agent = agent
        self._settings = settings
        self._peers = peers
        self._optimizer = MinibatchOptimizer(agent.parameters(), settings.actor, seed, "the actor's loss", peers)

    def update(self, fresh: Sequence[Trajectory], replay: Sequence[Trajectory]) -> dict[str, float]:
        self._agent.train(False)  # ratios must be exact
        advantages = _advantages(fresh, self._settings.scale_by_deviation)
        telling = [(episode, advantage) for episode, advantage in zip(fresh, advantages, strict=True) if advantage]
        rows = [Example(step.observation, step.action) for episode, _ in telling for step in episode.steps]
        batch = self._batch(telling, rows)
        loss = self._optimizer.fit(len(rows), lambda chosen: self._loss(rows, batch, chosen))
        kept = {"kept_trajectories": float(len(telling)), "kept_steps": float(len(rows))}
        return {"actor_loss": loss, "policy_lag": _mean_lag(fresh), **kept, **self._moved(rows, batch)}

    def state_dict(self) -> dict[str, Any]:
        return self._optimizer.state_dict()

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        self._optimizer.load_state_dict(state)

    def _batch(self, telling: Sequence[tuple[Trajectory, float]], rows: Sequence[Example]) -> Batch:
        steps = [(episode, step, advantage) for episode, advantage in telling for step in episode.steps]
        acted = torch.tensor([step.log_prob for _, step, _ in steps])
        stale = torch.tensor([_lag(episode) > 0 for episode, _, _ in steps])
        old = acted
        if stale.any():
            with torch.no_grad():
                old = torch.where(stale, log_probs_of(self._agent, rows).cpu(), acted)
        all_steps, all_episodes = self._peers.total(torch.tensor([len(steps), len(telling)])).tolist()
        per_episode = torch.tensor([all_steps / all_episodes / len(episode.steps) for episode, _, _ in steps])
        weights = per_episode * importance(old, acted, self._settings.max_importance)
        return Batch(old, torch.tensor([advantage for _, _, advantage in steps]), weights)

    def _loss(self, rows: Sequence[Example], batch: Batch, chosen: list[int]) -> torch.Tensor:
        part = [rows[index] for index in chosen]
        log_probs = self._agent.log_prob([row.observation for row in part], [row.action for row in part])
        return clipped_loss(log_probs, batch[chosen], self._settings.clip_low, self._settings.clip_high)

    def _moved(self, rows: Sequence[Example], batch: Batch) -> dict[str, float]:
        """How far the update went: the share of clipped ratios, and the mean of −log ratio."""
        if not rows:
            return {}
        with torch.no_grad():
            moved = log_probs_of(self._agent, rows).cpu() - batch.old
        ratio = moved.exp()
        outside = (ratio < 1 - self._settings.clip_low) | (ratio > 1 + self._settings.clip_high)
        return {"clipped_share": float(outside.double().mean()), "kl_from_old": float(-moved.double().mean())}


def clipped_loss(log_probs: torch.Tensor, batch: Batch, clip_low: float, clip_high: float) -> torch.Tensor:
    """−mean of w · min(ρ A, clip(ρ, 1 − ``clip_low``, 1 + ``clip_high``) A) with ρ = exp(log π − log π_old); [B].

    arXiv 2402.03300, equation 3 without its KL term; two bounds as in DAPO (arXiv 2503.14476, section 3.1).
    """
    old, advantages, weights = (part.to(log_probs) for part in (batch.old, batch.advantages, batch.weights))
    ratio = (log_probs - old).exp()
    bounded = ratio.clamp(1 - clip_low, 1 + clip_high)
    return -(weights * torch.minimum(ratio * advantages, bounded * advantages)).mean()


def importance(log_probs: torch.Tensor, acted: torch.Tensor, most: float) -> torch.Tensor:
    """min(π / μ, ``most``) of log-probabilities log π now and log μ when it acted; shape [B].

    Truncated importance weights (arXiv 1802.01561, section 4.1); 1 where the policy that acted is the present one.
    """
    return (log_probs - acted).exp().clamp(max=most)


def _advantages(episodes: Sequence[Trajectory], scale: bool) -> list[float]:
    """Of each episode within its group: those of one iteration, task and seed."""
    groups: dict[tuple[int, str, int], list[int]] = defaultdict(list)
    for index, episode in enumerate(episodes):
        groups[episode.ticket.iteration, episode.ticket.task.id, episode.ticket.seed].append(index)
    advantages = np.zeros(len(episodes))
    for members in groups.values():
        advantages[members] = group_advantages(np.array([episodes[index].reward for index in members]), scale)
    found: list[float] = advantages.tolist()
    return found


def _lag(episode: Trajectory) -> int:
    """Updates that were made between the policy that acted and the one that is to learn from it."""
    return episode.ticket.iteration - episode.ticket.policy_version


def _mean_lag(episodes: Sequence[Trajectory]) -> float:
    return sum(map(_lag, episodes)) / len(episodes) if episodes else 0.0
