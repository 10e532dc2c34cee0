"""Filtered behaviour cloning: imitate the best trajectories."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from digirl_dist.agent import Agent
from digirl_dist.algorithm.hindsight import USUAL, Experience
from digirl_dist.algorithm.imitation import Imitation
from digirl_dist.algorithm.optimizer import totals
from digirl_dist.algorithm.options import FilteredBcOptions
from digirl_dist.algorithm.selection import (
    best,
    fatal,
    judged,
    loops,
    mean_weight,
    newest,
    task_weights,
    unsolved_steps,
)
from digirl_dist.algorithm.table import (
    AVOIDED,
    IN_LOOPS,
    KEPT,
    NOT_CHOSEN,
    NOT_GOOD,
    UNDRAWN,
    UNSOLVED,
    Learned,
    Row,
    counts,
    rows_of,
)
from digirl_dist.parallel.peers import ALONE, Peers
from digirl_dist.trajectory import Trajectory

_ENOUGH, _LITTLE = 0.9, 1 / 6
"""Share of the new episodes that succeed beyond which this share of an update is enough."""
_FEW = 24
"""Kept episodes of a full update. Fewer make a smaller one: many passes over two successes leave little else to try.

Not where steps of unsolved tasks are held, which keeps what else there is.
"""

_LIGHTLY, _LOOPS = 0.1, 1 / 4
"""Weight of a step in a loop, relative to one that ended an episode without success, and how many there may be for each
imitated: more of them take up the minibatches."""


class FilteredBC:
    """Fulfils ``Algorithm``: behaviour cloning of the replay's best trajectories."""

    def __init__(
        self,
        agent: Agent,
        settings: FilteredBcOptions,
        seed: int,
        peers: Peers = ALONE,
        experience: Experience = USUAL,
    ) -> None:
        self._settings = settings
        self._experience = experience
        self._peers = peers
        self._imitation = Imitation(agent, settings.actor, seed, peers)

    def update(self, fresh: Sequence[Trajectory], replay: Sequence[Trajectory]) -> Learned:
        episodes, relabelled = self._experience.hindsight.added(replay, self._peers)
        new = totals({"episodes": len(fresh), "solved": sum(one.success for one in fresh)}, self._peers)
        tried = {episode.ticket.key: episode.ticket.task.id for episode in replay}
        # Offline nobody tries: no episode is newer than another, and nothing is kept open.
        kept = newest(
            best(np.array([one.reward for one in episodes]), self._settings.top_share, self._settings.min_return),
            [tried[one.ticket.key] for one in episodes],
            [len(one.steps) for one in episodes],
            self._settings.newest if new["episodes"] else len(episodes),
        )
        table = self._judged(episodes, kept)
        rows = [row for row in table if row.weight]
        weight = self._settings.avoid * mean_weight(rows)
        avoided = [
            *fatal(replay, [episodes[index] for index in kept], weight),
            *loops(fresh, int(_LOOPS * len(rows)), _LIGHTLY * weight, self._experience.erase_loops),
        ]
        held = unsolved_steps(replay, self._experience.unsolved, rows) if new["episodes"] else []
        sizes = totals({"kept_trajectories": len(kept), "held": len(held)}, self._peers)
        is_enough = self._experience.tells_success and new["solved"] > _ENOUGH * new["episodes"]
        share = min(_LITTLE if is_enough else 1.0, 1.0 if sizes["held"] else sizes["kept_trajectories"] / _FEW)
        fit = self._imitation.fit([*rows, *avoided, *held], share)
        table += [*avoided, *held]
        sums = totals(counts(table, KEPT, AVOIDED, UNSOLVED, NOT_CHOSEN, NOT_GOOD, IN_LOOPS, UNDRAWN), self._peers)
        return Learned(
            {
                "actor_loss": fit.loss,
                "skipped_steps": float(fit.skipped),
                **sums,
                "kept_trajectories": sizes["kept_trajectories"],
                **relabelled,
            },
            table,
        )

    def _judged(self, episodes: Sequence[Trajectory], kept: Sequence[int]) -> list[Row]:
        """Returns a row for each step, with a weight where it is imitated: frequent tasks weigh less."""
        lowest = min((episodes[index].reward for index in kept), default=self._settings.min_return)
        share_of = dict(zip(kept, task_weights([episodes[index].ticket.task.id for index in kept]), strict=True))
        worth = self._settings.discount, self._experience.erase_loops
        table = []
        for index, episode in enumerate(episodes):
            if index in share_of:
                table += judged(episode, KEPT, "one of the best episodes", share_of[index], *worth)
            else:
                why = f"its return {episode.reward:.3g} is not among the best and newest, which begin at {lowest:.3g}"
                table += rows_of(episode, NOT_CHOSEN, why)
        return table

    def state_dict(self) -> dict[str, Any]:
        return {"imitation": self._imitation.state_dict()}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        self._imitation.load_state_dict(state["imitation"])
