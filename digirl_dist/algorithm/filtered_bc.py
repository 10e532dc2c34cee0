"""Filtered behaviour cloning: imitate the best trajectories."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from digirl_dist.agent import Agent
from digirl_dist.algorithm.imitation import Example, Imitation
from digirl_dist.algorithm.selection import best, task_weights
from digirl_dist.settings import FilteredBcSettings
from digirl_dist.trajectory import Observation, Trajectory


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


def changed_something(trajectory: Trajectory) -> list[bool]:
    """Of each step, whether it was rewarded or what was seen after it differs from what was seen before."""
    seen = [*(step.observation for step in trajectory.steps), trajectory.final_observation]
    pairs = zip(trajectory.steps, seen[1:], strict=True)
    return [step.reward != 0 or not _alike(step.observation, after) for step, after in pairs]


def _alike(one: Observation, other: Observation) -> bool:
    return (one.text, one.image) == (other.text, other.image) and np.array_equal(
        one.vector if one.vector is not None else (), other.vector if other.vector is not None else ()
    )


def _examples(trajectory: Trajectory, discount: float, share: float) -> list[Example]:
    """The steps, each as heavy as what came after it.

    Left out are those after which nothing good came, and those that changed nothing: a tap beside every button before
    the right one is not worth imitating.
    """
    weights = returns_to_go([step.reward for step in trajectory.steps], discount)
    worth = [weight if changed else 0.0 for weight, changed in zip(weights, changed_something(trajectory), strict=True)]
    steps = zip(trajectory.steps, worth, strict=True)
    return [Example(step.observation, step.action, share * weight) for step, weight in steps if weight > 0]
