"""Filtered behaviour cloning: imitate the best trajectories."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from digirl_dist.agent import Agent
from digirl_dist.algorithm.imitation import Example, Imitation
from digirl_dist.algorithm.selection import best, task_weights
from digirl_dist.settings import FilteredBcSettings
from digirl_dist.trajectory import Trajectory


class FilteredBC:
    """Fulfils ``Algorithm``: behaviour cloning of the replay's best trajectories."""

    def __init__(self, agent: Agent, settings: FilteredBcSettings, seed: int) -> None:
        self._settings = settings
        self._imitation = Imitation(agent, settings.actor, seed)

    def update(self, fresh: Sequence[Trajectory], replay: Sequence[Trajectory]) -> dict[str, float]:
        returns = np.array([trajectory.reward for trajectory in replay])
        chosen = best(returns, self._settings.top_share, self._settings.min_return)
        kept = [replay[index] for index in chosen]
        shares = task_weights([trajectory.ticket.task.id for trajectory in kept])
        pairs = zip(kept, shares, strict=True)
        rows = [row for trajectory, share in pairs for row in _examples(trajectory, self._settings.discount, share)]
        loss = self._imitation.fit(rows)
        return {"actor_loss": loss, "kept_trajectories": float(len(chosen)), "kept_steps": float(len(rows))}

    def state_dict(self) -> dict[str, Any]:
        return {"imitation": self._imitation.state_dict()}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        self._imitation.load_state_dict(state["imitation"])


def returns_to_go(rewards: Sequence[float], discount: float) -> list[float]:
    """What came after each step: sum over k of ``discount``^k times the reward k steps later (Sutton & Barto, 3.8)."""
    togo = list(rewards)
    for step in reversed(range(len(togo) - 1)):
        togo[step] += discount * togo[step + 1]
    return togo


def _examples(trajectory: Trajectory, discount: float, share: float) -> list[Example]:
    """The steps, each as heavy as what came after it; those after which nothing good came are left out."""
    weights = returns_to_go([step.reward for step in trajectory.steps], discount)
    pairs = zip(trajectory.steps, weights, strict=True)
    return [Example(step.observation, step.action, share * weight) for step, weight in pairs if weight > 0]
