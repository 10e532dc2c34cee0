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
        worth = self._settings.discount, self._settings.erase_loops
        rows = [row for trajectory, share in pairs for row in worth_repeating(trajectory, share, *worth)]
        loss = self._imitation.fit(rows)
        in_kept = sum(len(trajectory.steps) for trajectory in kept)
        not_chosen = sum(len(trajectory.steps) for trajectory in episodes) - in_kept
        counts = {"kept_trajectories": len(chosen), "kept_steps": len(rows)}
        left = {"left_not_chosen": not_chosen, "left_not_good": in_kept - len(rows)}
        figures = {name: float(count) for name, count in {**counts, **left}.items()}
        return {"actor_loss": loss, **figures, **relabelled}

    def state_dict(self) -> dict[str, Any]:
        return {"imitation": self._imitation.state_dict()}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        self._imitation.load_state_dict(state["imitation"])
