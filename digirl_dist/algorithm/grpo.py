"""GRPO: climb towards the episodes that came out better than others of the same task (arXiv 2402.03300)."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np
import torch

from digirl_dist.agent import Agent
from digirl_dist.algorithm.advantages import alike, group_advantages
from digirl_dist.algorithm.imitation import all_log_probs, log_probs_of
from digirl_dist.algorithm.losses import Compared, clipped_loss, importance_of, mean_of_tokens, with_entropy
from digirl_dist.algorithm.optimizer import Drawn, MinibatchOptimizer, OptimizerIsTheState, totals
from digirl_dist.algorithm.options import GrpoOptions, Loss
from digirl_dist.algorithm.selection import Waiting, completed_groups, start_of
from digirl_dist.algorithm.table import (
    ALIKE,
    KEPT,
    UNDRAWN,
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


@dataclass
class Moved:
    """How far an update went, counted in its own passes over this rank's tokens."""

    tokens: float = 0.0
    outside: float = 0.0
    """Tokens whose ratio was clipped."""
    log_ratios: float = 0.0

    def add(self, ratios: torch.Tensor, mask: torch.Tensor, low: float, high: float) -> None:
        """Counts ratios [B, T] of tokens."""
        own = ratios[mask & ratios.isfinite()].double()  # the others are skipped
        self.tokens += len(own)
        self.outside += float(((own < 1 - low) | (own > 1 + high)).sum())
        self.log_ratios += float(own.log().sum())

    def figures(self, peers: Peers) -> dict[str, float]:
        """Returns the share of clipped ratios and the mean of −log ratio over all ranks; nothing without tokens."""
        sums = torch.tensor([self.tokens, self.outside, self.log_ratios], dtype=torch.float64)
        tokens, outside, log_ratios = peers.total_of_parts(sums).tolist()
        return {"clipped_share": outside / tokens, "kl_from_old": -log_ratios / tokens} if tokens else {}


class Grpo(OptimizerIsTheState):
    """Fulfils ``Algorithm``. Compares each fresh episode with its group.

    The policy that acted need not be the one that learns: it may be older (``ahead``), or compute in another
    precision. So ratios are taken to the policy as it is before the update, and its own ratio to the one that acted,
    truncated, becomes a weight (the decoupled objective of arXiv 2110.00641, as used for language models in arXiv
    2505.24298).
    """

    OUTCOMES: ClassVar[tuple[str, ...]] = (KEPT, ALIKE, WAITING, UNDRAWN)
    """Figures that count the rows of the table."""

    def __init__(self, agent: Agent, settings: GrpoOptions, seed: int, peers: Peers = ALONE) -> None:
        self._agent = agent
        self._settings = settings
        self._peers = peers
        self._optimizer = MinibatchOptimizer(agent.parameters(), settings.actor, seed, "the actor's loss", peers)
        self._waiting: Waiting | None = None
        self._start = torch.optim.SGD(agent.parameters())
        """Makes no step: ranks gather and shard the first weights that it keeps as they do what others keep."""
        if settings.actor.kl_weight:  # no update was made or loaded yet
            self._start.state.update({one: {"start": one.detach().clone()} for one in agent.parameters()})
            peers.adopt(self._start)

    def state_dict(self) -> dict[str, Any]:
        return (
            {**super().state_dict(), "start": self._start.state_dict()} if self._start.state else super().state_dict()
        )

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        super().load_state_dict(state)
        if self._start.state:
            self._start.load_state_dict(state["start"])

    def expect(self, before: Sequence[Ticket], after: Sequence[Ticket]) -> None:
        """See ``ExpectingAlgorithm``; without this call, every group is waited for until it is whole."""
        self._waiting = Waiting(*(frozenset((one.task.id, one.seed) for one in each) for each in (before, after)))

    def update(self, fresh: Sequence[Trajectory], replay: Sequence[Trajectory]) -> Learned:
        self._agent.train(False)  # ratios must be exact
        groups = completed_groups(fresh, replay, self._settings.group_size, self._waiting)
        table = _compared(fresh, groups, self._settings.divide_by_deviation)
        rows = [row for row in table if row.outcome == KEPT]
        beside, figures = self._beside(replay)
        everything = [*rows, *beside]
        drawn = self._optimizer.draw(len(everything), fresh=len(rows))
        batch, moved = self._batch(rows, drawn), Moved()
        fit = self._optimizer.fit(drawn, lambda chosen: self._loss(everything, batch, chosen, moved))
        learned_from(everything, fit.learned)
        table += beside
        figures |= _mismatch(rows, batch.old, max((one.ticket.iteration for one in fresh), default=0), self._peers)
        figures |= {"actor_loss": fit.loss, "skipped_steps": float(fit.skipped), **moved.figures(self._peers)}
        return Learned({**figures, **self._counts(fresh, groups, table)}, table)

    def _beside(self, replay: Sequence[Trajectory]) -> tuple[list[Row], dict[str, float]]:
        """Returns further rows that a minibatch is drawn from, and figures: nothing, but see ``GrpoReplay``."""
        return [], {}

    def _loss(self, rows: Sequence[Row], batch: Compared, chosen: list[int], moved: Moved) -> torch.Tensor:
        log_probs, mask = log_probs_of(self._agent, [rows[place] for place in chosen])
        loss, ratios = clipped_loss(log_probs, mask, batch[chosen], self._settings)
        moved.add(ratios, mask, self._settings.clip_low, self._settings.clip_high)
        return loss

    def _batch(self, rows: Sequence[Row], drawn: Drawn) -> Compared:
        """Returns what the rows' objective is computed from, and gives the rows their weights for the table."""
        old, mask = all_log_probs(self._agent, rows, self._peers, drawn.batches)
        start = None
        if self._start.state:
            with self._at_start():
                start, _ = all_log_probs(self._agent, rows, self._peers, drawn.batches)
        advantages = torch.tensor([row.advantage or 0.0 for row in rows], dtype=torch.float64)[:, None].expand_as(old)
        if weight := self._settings.actor.entropy_weight:
            found = totals({"surprise": -float(old.sum()), "tokens": float(mask.sum())}, self._peers)
            advantages = with_entropy(advantages, old, found["surprise"] / max(1.0, found["tokens"]), weight)
        loss, most = self._settings.loss, self._settings.most_importance
        importance = importance_of(old, acted(rows, old, mask), mask, loss, most)
        weights = self._weights(rows, mask)
        for row, of_row in zip(rows, (weights * mean_of_tokens(importance, mask)).tolist(), strict=True):
            row.weight = of_row
        return Compared(old, importance, advantages, weights, start)

    def _weights(self, rows: Sequence[Row], mask: torch.Tensor) -> torch.Tensor:
        """Returns what each row counts for, [N], 1 in the mean of all ranks: alike, or as many as its tokens.

        Where episodes count alike, it is the row's share of its episode.
        """
        counts = (mask.sum(dim=1) if self._settings.loss is Loss.token else torch.ones(len(rows))).double()
        if self._settings.per_episode:
            of_episodes: dict[int, float] = defaultdict(float)
            for row, count in zip(rows, counts.tolist(), strict=True):
                of_episodes[id(row.episode)] += count
            counts /= torch.tensor([of_episodes[id(row.episode)] for row in rows], dtype=torch.float64)
        sums = totals({"counts": float(counts.sum()), "rows": len(rows)}, self._peers)
        return counts * (sums["rows"] / max(1.0, sums["counts"]))

    @contextmanager
    def _at_start(self) -> Iterator[None]:
        """Has the agent compute with the weights that the run began with."""
        parameters = list(self._agent.parameters())
        learned = [parameter.detach().clone() for parameter in parameters]
        _assign(parameters, [self._start.state[parameter]["start"] for parameter in parameters])
        try:
            yield
        finally:
            _assign(parameters, learned)

    def _counts(
        self, fresh: Sequence[Trajectory], groups: Sequence[Sequence[Trajectory]], table: Sequence[Row]
    ) -> dict[str, float]:
        """Returns the counts of all ranks, with shares in place of what only these are made from.

        ``policy_lag`` is the mean number of updates between the policy that took a step and the one that learns.
        """
        now = max((episode.ticket.iteration for episode in fresh), default=0)
        own = {
            "fresh": sum(len(episode.steps) for episode in fresh),
            "lag": sum(now - version for episode in fresh for version in episode.versions),
            "groups": len(groups),
            "alike": sum(_alike(members) for members in groups),
            "kept_trajectories": len({id(row.episode) for row in table if row.outcome == KEPT}),
            **counts(table, *self.OUTCOMES),
        }
        found = totals(own, self._peers)
        all_fresh, lag, alike_groups = (found.pop(name) for name in ("fresh", "lag", "alike"))
        share = alike_groups / found["groups"] if found["groups"] else 0.0
        return {"policy_lag": lag / all_fresh if all_fresh else 0.0, **found, "groups_alike_share": share}


@torch.no_grad()
def _assign(parameters: Sequence[torch.nn.Parameter], values: Sequence[torch.Tensor]) -> None:
    for parameter, value in zip(parameters, values, strict=True):
        parameter.copy_(value)


def acted(rows: Sequence[Row], old: torch.Tensor, mask: torch.Tensor) -> torch.Tensor:
    """Returns log-probabilities [N, T] of the policy that acted, as they are stored.

    Where only that of the whole action is, by how much it differs from ``old`` is shared out over the tokens.
    """
    found = old.clone()
    for line, own, row in zip(found, mask, rows, strict=True):
        step, count = row.episode.steps[row.place], int(own.sum())
        if len(step.token_log_probs) == count:
            line[own] = torch.tensor(step.token_log_probs, dtype=line.dtype)
        else:
            line[own] += (step.log_prob - line.sum()) / count
    return found


def _mismatch(rows: Sequence[Row], old: torch.Tensor, now: int, peers: Peers) -> dict[str, float]:
    """Returns by how much log-probabilities of the policy that acted are off those that are computed here.

    That is the mean absolute difference of tokens, in nats, where that policy has the present weights: of no others is
    it an error. Without such rows, nothing is returned.
    """
    own = {"off": 0.0, "tokens": 0.0}
    for row, computed in zip(rows, old, strict=True):
        step = row.episode.steps[row.place]
        told = torch.tensor(step.token_log_probs or [step.log_prob], dtype=old.dtype)
        off = (told - (computed[: len(told)] if step.token_log_probs else computed.sum())).abs()
        if now == row.episode.versions[row.place] and off.isfinite().all():
            own = {"off": own["off"] + float(off.sum()), "tokens": own["tokens"] + len(told)}
    found = totals(own, peers)
    return {"mismatch": found["off"] / found["tokens"]} if found["tokens"] else {}


def _compared(fresh: Sequence[Trajectory], groups: Sequence[Sequence[Trajectory]], divide: bool) -> list[Row]:
    """Returns a row for each step of the groups, with its advantage, and of the fresh episodes that wait for theirs."""
    table = []
    for members in groups:
        found = group_advantages(np.array([episode.reward for episode in members]), divide).tolist()
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
