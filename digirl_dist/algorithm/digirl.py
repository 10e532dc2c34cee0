"""DigiRL: imitate the steps that turned out better than expected, in the episodes that did (arXiv 2406.11896)."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import torch

from digirl_dist.agent import Agent
from digirl_dist.algorithm.imitation import Example, Imitation
from digirl_dist.algorithm.selection import best, task_weights
from digirl_dist.algorithm.values import SuccessValue
from digirl_dist.settings import DigirlSettings
from digirl_dist.trajectory import Trajectory


class DigiRL:
    """Fulfils ``Algorithm``.

    Two value functions are fitted to the newest episodes: one of the first observation (how hard is the instruction?)
    and one of every observation. The first chooses episodes, the second steps; the chosen steps are imitated.
    """

    def __init__(self, agent: Agent, settings: DigirlSettings, seed: int) -> None:
        self._agent = agent
        self._settings = settings
        self._imitation = Imitation(agent, settings.actor, seed)
        self._instruction_value = SuccessValue(agent.feature_size, settings.value, seed + 1)
        self._step_value = SuccessValue(agent.feature_size, settings.value, seed + 2)

    def update(self, fresh: Sequence[Trajectory], replay: Sequence[Trajectory]) -> dict[str, float]:
        episodes = replay[-self._settings.value_episodes :]
        if not episodes:
            return {"actor_loss": 0.0, "kept_trajectories": 0.0, "kept_steps": 0.0}
        features = [self._features(episode) for episode in episodes]
        losses = self._fit_values(episodes, features)
        first = torch.stack([of_episode[0] for of_episode in features])
        surprise = instruction_advantages(_rewards(episodes), self._instruction_value(first).numpy())
        chosen = best(surprise, self._settings.top_share, above=0.0)
        weights = task_weights([episodes[index].ticket.task.id for index in chosen])
        rows = [
            row
            for index, weight in zip(chosen, weights, strict=True)
            for row in self._good_steps(episodes[index], features[index], weight)
        ]
        actor_loss = self._imitation.fit(rows)
        kept = {"kept_trajectories": float(len(chosen)), "kept_steps": float(len(rows))}
        return {"actor_loss": actor_loss, **losses, **kept}

    def state_dict(self) -> dict[str, Any]:
        return {
            "imitation": self._imitation.state_dict(),
            "instruction_value": self._instruction_value.state_dict(),
            "step_value": self._step_value.state_dict(),
        }

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        self._imitation.load_state_dict(state["imitation"])
        self._instruction_value.load_state_dict(state["instruction_value"])
        self._step_value.load_state_dict(state["step_value"])

    def _features(self, episode: Trajectory) -> torch.Tensor:
        """Of every observation of an episode, the final one last: [H + 1, F]."""
        seen = [*(step.observation for step in episode.steps), episode.final_observation]
        return self._agent.features(seen).detach().cpu()

    def _fit_values(self, episodes: Sequence[Trajectory], features: Sequence[torch.Tensor]) -> dict[str, float]:
        succeeded = [episode.reward > 0 for episode in episodes]
        first = torch.stack([of_episode[0] for of_episode in features])
        before = torch.cat([of_episode[:-1] for of_episode in features])
        labels = [label for label, of_episode in zip(succeeded, features, strict=True) for _ in of_episode[:-1]]
        return {
            "instruction_value_loss": self._instruction_value.fit(first, succeeded),
            "step_value_loss": self._step_value.fit(before, labels),
        }

    def _good_steps(self, episode: Trajectory, features: torch.Tensor, weight: float) -> list[Example]:
        values = self._step_value(features).double().numpy()
        if episode.steps[-1].terminated:
            values[-1] = 0.0  # nothing can come after the end
        rewards = np.array([step.reward for step in episode.steps])
        advantages = step_advantages(rewards, values, self._settings.lam)
        good = advantages > 1 / len(episode.steps)
        steps = zip(episode.steps, good, strict=True)
        return [Example(step.observation, step.action, weight) for step, keep in steps if keep]


def instruction_advantages(rewards: np.ndarray, values: np.ndarray) -> np.ndarray:
    """How much better each episode ended than its instruction let expect: return minus V(s0, c); shapes [N].

    arXiv 2406.11896, section 4.3 ("instruction-level value function").
    """
    return np.asarray(rewards - values)


def step_advantages(rewards: np.ndarray, values: np.ndarray, lam: float) -> np.ndarray:
    """The doubly robust advantage of each of H steps (arXiv 2406.11896, equation 4).

    With h from 1 to H: λ^(H−h) r_H + (1 − λ^(H−h)) (V(s_h+1) + r_h − V(s_h)). ``rewards`` has shape [H], ``values``
    [H + 1]. Near the end it trusts the outcome, far from it the values.
    """
    steps = len(rewards)
    trust = lam ** np.arange(steps - 1, -1, -1, dtype=np.float64)
    bootstrapped = values[1:] + rewards - values[:-1]
    return np.asarray(trust * rewards[-1] + (1 - trust) * bootstrapped)


def _rewards(episodes: Sequence[Trajectory]) -> np.ndarray:
    return np.array([episode.reward for episode in episodes])
