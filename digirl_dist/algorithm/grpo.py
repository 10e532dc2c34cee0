"""GRPO: climb towards the episodes that came out better than others of the same task (arXiv 2402.03300)."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch

from digirl_dist.agent import Agent
from digirl_dist.algorithm.advantages import alike, clipped_gains, group_advantages, ratios_of
from digirl_dist.algorithm.hindsight import USUAL, Experience
from digirl_dist.algorithm.imitation import log_probs_in_parts, log_probs_of
from digirl_dist.algorithm.optimizer import MinibatchOptimizer, OptimizerIsTheState, totals
from digirl_dist.algorithm.options import GrpoOptions
from digirl_dist.algorithm.selection import (
    Waiting,
    completed_groups,
    expected_returns,
    judged,
    start_of,
    surpluses,
    task_weights,
    unsolved_steps,
)
from digirl_dist.algorithm.table import (
    ALIKE,
    IMITATED,
    KEPT,
    UNDRAWN,
    UNSOLVED,
    WAITING,
    Learned,
    Row,
    counts,
    learned_from,
    rows_of,
)
from digirl_dist.parallel.peers import ALONE, Peers
from digirl_dist.tasks import Ticket
from digirl_dist.trajectory import Trajectory

_DISCOUNT = 0.7
"""Discount of the return to go by which imitated steps are weighted."""
_MOST_IMPORTANCE = 2.0
"""Largest weight of a step that a different policy took: an older one, or one of another precision."""


@dataclass(frozen=True, eq=False)
class Batch:
    """What the objective is computed from, all of shape [B]."""

    old: torch.Tensor
    """Log-probabilities that the ratios are taken to."""
    advantages: torch.Tensor
    weights: torch.Tensor
    """What each step counts for."""
    imitated: torch.Tensor
    """Whether a step is imitated, with this weight alone."""

    def __getitem__(self, rows: list[int]) -> Batch:
        return Batch(self.old[rows], self.advantages[rows], self.weights[rows], self.imitated[rows])


class Grpo(OptimizerIsTheState):
    """Fulfils ``Algorithm``. Compares each fresh episode with its group, and imitates what succeeded before.

    The policy that acted need not be the one that learns: it may be older (``collect_ahead``), or compute in another
    precision. So ratios are taken to the policy as it is before the update, and its own ratio to the one that acted,
    truncated, becomes a weight (the decoupled objective of arXiv 2110.00641, as used for language models in arXiv
    2505.24298).
    """

    def __init__(
        self,
        agent: Agent,
        settings: GrpoOptions,
        seed: int,
        peers: Peers = ALONE,
        experience: Experience = USUAL,
    ) -> None:
        self._agent = agent
        self._experience = experience
        self._settings = settings
        self._peers = peers
        self._optimizer = MinibatchOptimizer(agent.parameters(), settings.actor, seed, "the actor's loss", peers)
        self._waiting: Waiting | None = None

    def expect(self, before: Sequence[Ticket], after: Sequence[Ticket]) -> None:
        """See ``ExpectingAlgorithm``; without this call, every group is waited for until it is whole."""
        self._waiting = Waiting(*(frozenset((one.task.id, one.seed) for one in each) for each in (before, after)))

    def update(self, fresh: Sequence[Trajectory], replay: Sequence[Trajectory]) -> Learned:
        self._agent.train(False)
        groups = completed_groups(fresh, replay, self._settings.group_size, self._waiting)
        table = _compared(fresh, groups)
        rows = [row for row in table if row.outcome == KEPT]
        old = self._weigh(rows)
        imitated, relabelled = self._imitated(replay)
        beside = [*imitated, *unsolved_steps(replay, self._experience.unsolved, imitated)]
        self._weigh_imitated(beside)
        everything, batch = [*rows, *beside], _batch(rows, beside, old)
        fit = self._optimizer.fit(len(everything), lambda some: self._loss(everything, batch, some), fresh=len(rows))
        learned_from(everything, fit.learned)
        table += beside
        figures = {"actor_loss": fit.loss, "skipped_steps": float(fit.skipped)}
        return Learned({**figures, **self._counts(fresh, groups, table), **relabelled, **self._moved(rows, old)}, table)

    def _weigh(self, rows: Sequence[Row]) -> torch.Tensor:
        """Weighs fresh steps: 1/H of their episode, times the correction for the policy that acted.

        Returns the log-probabilities of the policy as it is, shape [N].
        """
        acted = torch.tensor([row.episode.steps[row.place].log_prob for row in rows])
        with torch.no_grad():
            old = log_probs_in_parts(self._agent, rows).cpu() if rows else acted
        own = {"steps": len(rows), "episodes": len({id(row.episode) for row in rows})}
        sums = totals(own, self._peers)
        steps = sums["steps"] / max(1, sums["episodes"])
        for row, correction in zip(rows, importance(old, acted, _MOST_IMPORTANCE).tolist(), strict=True):
            row.weight = steps / len(row.episode.steps) * correction
        return old

    def _imitated(self, replay: Sequence[Trajectory]) -> tuple[list[Row], dict[str, float]]:
        """Returns the steps of episodes that ended better than their task lately does, heavier the more it was.

        Self-imitation, (R − V)₊ log π (arXiv 1806.05635, equation 2), where V is the mean return of the task's newest
        episodes; so a task that is mastered leaves the room to others.
        """
        if not self._settings.replay_weight:
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
            row.weight *= self._settings.replay_weight * found["rows"] / found["weight"]

    def _loss(self, rows: Sequence[Row], batch: Batch, chosen: list[int]) -> torch.Tensor:
        """Ratios must be exact; what is imitated is fitted in training mode, as the imitating algorithms do."""
        log_probs, order = [], []
        for imitated in (False, True):
            part = [index for index in chosen if batch.imitated[index] == imitated]
            if asked := part or self._stand_in(batch, imitated):
                self._agent.train(imitated)
                log_probs.append(log_probs_of(self._agent, [rows[index] for index in asked])[: len(part)])
                order += part
        self._agent.train(False)
        return clipped_loss(torch.cat(log_probs), batch[order], self._settings.clip_low, self._settings.clip_high)

    def _stand_in(self, batch: Batch, imitated: bool) -> list[int]:
        """Any row of a kind that a rank's part of a minibatch lacks, to be computed and left out.

        Ranks that have a part of the weights each must call the agent equally often.
        """
        return [] if self._peers.replicas else torch.nonzero(batch.imitated == imitated)[:1, 0].tolist()

    def _moved(self, rows: Sequence[Row], old: torch.Tensor) -> dict[str, float]:
        """Returns how far the update went: the share of clipped ratios, and the mean of −log ratio.

        Over the rows of all ranks that were learned from; nothing if no rank has any.
        """
        with torch.no_grad():
            now = log_probs_in_parts(self._agent, rows).cpu() if rows else old
        ratio = ratios_of(now, old)[[row.learned for row in rows]]
        outside = (ratio < 1 - self._settings.clip_low) | (ratio > 1 + self._settings.clip_high)
        own = {"rows": len(ratio), "outside": float(outside.sum()), "moved": float(ratio.double().log().sum())}
        found = totals(own, self._peers)
        count = found["rows"]
        return {"clipped_share": found["outside"] / count, "kl_from_old": -found["moved"] / count} if count else {}

    def _counts(
        self, fresh: Sequence[Trajectory], groups: Sequence[Sequence[Trajectory]], table: Sequence[Row]
    ) -> dict[str, float]:
        """Returns the counts of all ranks, with shares in place of what only these are made from.

        ``policy_lag`` is the mean number of updates between the policy that acted and the one that learns from it.
        """
        now = max((episode.ticket.iteration for episode in fresh), default=0)
        kept = {id(row.episode) for row in table if row.outcome == KEPT}
        own = {
            "fresh": len(fresh),
            "lag": sum(now - episode.ticket.policy_version for episode in fresh),
            "groups": len(groups),
            "alike": sum(_alike(members) for members in groups),
            "kept_trajectories": len(kept),
            **counts(table, KEPT, IMITATED, UNSOLVED, ALIKE, WAITING, UNDRAWN),
        }
        found = totals(own, self._peers)
        all_fresh, lag, alike_groups = (found.pop(name) for name in ("fresh", "lag", "alike"))
        share = alike_groups / found["groups"] if found["groups"] else 0.0
        return {"policy_lag": lag / all_fresh if all_fresh else 0.0, **found, "groups_alike_share": share}


def _compared(fresh: Sequence[Trajectory], groups: Sequence[Sequence[Trajectory]]) -> list[Row]:
    """Returns a row for each step of the groups, with its advantage, and of the fresh episodes that wait for theirs."""
    table = []
    for members in groups:
        found = group_advantages(np.array([episode.reward for episode in members])).tolist()
        for episode, advantage in zip(members, found, strict=True):
            if _alike(members):
                rows = rows_of(episode, ALIKE, "all episodes of its group came out alike")
            else:
                better = "better" if advantage > 0 else "worse"
                rows = rows_of(episode, KEPT, f"its episode came out {better} than its group")
            for row in rows:
                row.advantage = advantage
            table += rows
    starts = {start_of(members[0]) for members in groups}
    waiting = [episode for episode in fresh if start_of(episode) not in starts]
    return table + [row for episode in waiting for row in rows_of(episode, WAITING, "its group is not complete yet")]


def _alike(members: Sequence[Trajectory]) -> bool:
    """Whether a group says nothing, for all its episodes came out alike."""
    return alike(np.array([episode.reward for episode in members]))


def _batch(rows: Sequence[Row], imitated: Sequence[Row], old: torch.Tensor) -> Batch:
    """``old`` belongs to the ``rows``."""
    advantages = torch.tensor([row.advantage or 0.0 for row in rows], dtype=torch.float64)
    weights = torch.tensor([row.weight for row in (*rows, *imitated)], dtype=torch.float32)
    nothing = torch.zeros(len(imitated))
    is_imitated = torch.arange(len(weights)) >= len(rows)
    return Batch(torch.cat([old, nothing]), torch.cat([advantages, nothing]), weights, is_imitated)


def clipped_loss(log_probs: torch.Tensor, batch: Batch, clip_low: float, clip_high: float) -> torch.Tensor:
    """−mean of w times what ``clipped_gains`` says, with ρ = exp(log π − log π_old); all shapes are [B].

    arXiv 2402.03300, equation 3 without its KL term. Of steps that are imitated w · log π.
    """
    old, advantages, weights = (part.to(log_probs) for part in (batch.old, batch.advantages, batch.weights))
    gains = clipped_gains(ratios_of(log_probs, old), advantages, clip_low, clip_high)
    return -(weights * torch.where(batch.imitated.to(log_probs.device), log_probs, gains)).mean()


def importance(log_probs: torch.Tensor, acted: torch.Tensor, most: float) -> torch.Tensor:
    """min(π / μ, ``most``) of log-probabilities log π now and log μ when it acted; shape [B].

    Truncated importance weights (arXiv 1802.01561, section 4.1); 1 where the policy that acted is the present one.
    """
    return ratios_of(log_probs, acted).clamp(max=most)
