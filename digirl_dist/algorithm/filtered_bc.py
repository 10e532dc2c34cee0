"""Filtered behaviour cloning: imitate the best trajectories."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from digirl_dist.agent import Agent
from digirl_dist.algorithm.hindsight import NO_HINDSIGHT, Hindsight
from digirl_dist.algorithm.imitation import Imitation, worth_repeating
from digirl_dist.algorithm.plugins.filtered_bc import FilteredBcSettings
from digirl_dist.algorithm.selection import best, task_weights
from digirl_dist.parallel.peers import ALONE, Peers
from digirl_dist.trajectory import Trajectory


class FilteredBC:
    """Fulfils ``Algorithm``: behaviour cloning of the replay's best trajectories."""

    def __init__(
        self,
        agent: Agent,
        settings: FilteredBcSettings,
        seed: int,
        peers: Peers = ALONE,
        hindsight: Hindsight = NO_HINDSIGHT,
    ) -> None:
        self._settings = settings
        self._hindsight = hindsight
        self._imitation = Imitation(agent, settings.actor, seed, peers)

    def update(self, fresh: Sequence[Trajectory], replay: Sequence[Trajectory]) -> dict[str, float]:
        episodes, relabelled = self._hindsight.added(replay)
        returns = np.array([trajectory.reward for trajectory in episodes])
        chosen = best(returns, self._settings.top_share, self._settings.min_return)
        kept = [episodes[index] for index in chosen]
        shares = task_weights([trajectory.ticket.task.id for trajectory in kept])
        pairs = zip(kept, shares, strict=True)
        discount, erase_loops = self._settings.discount, self._settings.erase_loops
        rows = [row for trajectory, share in pairs for row in worth_repeating(trajectory, share, discount, erase_loops)]
        loss = self._imitation.fit(rows)
        good = sum(len(worth_repeating(trajectory, 1.0, discount, erase_loops=False)) for trajectory in kept)
        counts = {
            "kept_trajectories": len(chosen),
            "kept_steps": len(rows),
            "left_not_chosen": _steps(episodes) - _steps(kept),
            "left_not_good": _steps(kept) - good,
            "left_in_loops": good - len(rows),
        }
        return {"actor_loss": loss, **{name: float(count) for name, count in counts.items()}, **relabelled}

    def state_dict(self) -> dict[str, Any]:
        return {"imitation": self._imitation.state_dict()}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        self._imitation.load_state_dict(state["imitation"])


def _steps(episodes: Sequence[Trajectory]) -> int:
    return sum(len(episode.steps) for episode in episodes)
