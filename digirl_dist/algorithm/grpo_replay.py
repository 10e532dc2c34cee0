"""GRPO mixed with imitation: groups teach once, successes of the replay again and again."""

from __future__ import annotations

from collections.abc import Sequence

import torch

from digirl_dist.agent import Agent, contract
from digirl_dist.algorithm.grpo import Grpo, Moved
from digirl_dist.algorithm.hindsight import USUAL, Experience
from digirl_dist.algorithm.losses import Compared
from digirl_dist.algorithm.optimizer import totals
from digirl_dist.algorithm.options import GrpoReplayOptions
from digirl_dist.algorithm.selection import expected_returns, judged, surpluses, task_weights, unsolved_steps
from digirl_dist.algorithm.table import IMITATED, UNSOLVED, Row
from digirl_dist.parallel.peers import ALONE, Peers
from digirl_dist.trajectory import Trajectory

_DISCOUNT = 0.7
"""Discount of the return to go by which imitated steps are weighted."""


class GrpoReplay(Grpo):
    """Fulfils ``Algorithm``. Beside its groups, minibatches have steps of the replay that are imitated or kept open."""

    OUTCOMES = (*Grpo.OUTCOMES, IMITATED, UNSOLVED)

    def __init__(
        self,
        agent: Agent,
        settings: GrpoReplayOptions,
        seed: int,
        peers: Peers = ALONE,
        experience: Experience = USUAL,
    ) -> None:
        super().__init__(agent, settings, seed, peers)
        self._replay_weight = settings.replay_weight
        self._experience = experience

    def _beside(self, replay: Sequence[Trajectory]) -> tuple[list[Row], dict[str, float]]:
        imitated, relabelled = self._imitated(replay)
        rows = [*imitated, *unsolved_steps(replay, self._experience.unsolved, imitated)]
        self._weigh_imitated(rows)
        return rows, relabelled

    def _imitated(self, replay: Sequence[Trajectory]) -> tuple[list[Row], dict[str, float]]:
        """Returns the steps of episodes that ended better than their task lately does, heavier the more it was.

        Self-imitation, (R − V)₊ log π (arXiv 1806.05635, equation 2), where V is the mean return of the task's newest
        episodes; so a task that is mastered leaves the room to others.
        """
        if not self._replay_weight:
            return [], {}
        episodes, relabelled = self._experience.hindsight.added(replay, self._peers)
        tasks = [episode.ticket.task.id for episode in episodes]
        surplus = surpluses([one.reward for one in episodes], tasks, expected_returns(replay))
        better = [(episode, more) for episode, more in zip(episodes, surplus, strict=True) if more > 0]
        shares = task_weights([episode.ticket.task.id for episode, _ in better])
        reason = "its episode ended better than its task lately does"
        worth = _DISCOUNT, self._experience.erase_loops
        rows = [
            row
            for (episode, more), share in zip(better, shares, strict=True)
            for row in judged(episode, IMITATED, reason, share * more, *worth)
        ]
        return [row for row in rows if row.weight], relabelled

    def _weigh_imitated(self, rows: Sequence[Row]) -> None:
        """Brings the mean weight over the rows of all ranks to ``replay_weight``."""
        found = totals({"weight": sum(row.weight for row in rows), "rows": len(rows)}, self._peers)
        for row in rows:
            row.weight *= self._replay_weight * found["rows"] / found["weight"]

    def _loss(self, rows: Sequence[Row], batch: Compared, chosen: list[int], moved: Moved) -> torch.Tensor:
        """Ratios must be exact; what is imitated is fitted in training mode, as the imitating algorithms do."""
        count = len(batch.weights)
        compared, imitated = [place for place in chosen if place < count], [place for place in chosen if place >= count]
        parts = []
        if asked := compared or self._stand_in(range(count)):
            parts.append(super()._loss(rows, batch, asked, moved if compared else Moved()) * len(compared))
        if asked := imitated or self._stand_in(range(count, len(rows))):
            self._agent.train()
            parts.append(self._imitation([rows[place] for place in asked]) * bool(imitated))
            self._agent.train(False)
        return torch.stack(parts).sum() / len(chosen)

    def _imitation(self, rows: Sequence[Row]) -> torch.Tensor:
        """Returns the sum of −w log π."""
        log_probs = contract.log_prob(self._agent, [row.observation for row in rows], [row.action for row in rows])
        return -(log_probs * torch.tensor([row.weight for row in rows]).to(log_probs)).sum()

    def _stand_in(self, places: range) -> list[int]:
        """Returns a row of a kind that a rank's part of a minibatch lacks, to be computed and left out.

        Ranks that have a part of the weights each must call the agent equally often.
        """
        return [] if self._peers.replicas else [*places[:1]]
