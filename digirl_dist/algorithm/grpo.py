"""GRPO: climb towards the episodes that came out better than others of the same task (arXiv 2402.03300)."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import torch

from digirl_dist.agent import Agent
from digirl_dist.algorithm import StepOutcome
from digirl_dist.algorithm.advantages import ROUNDING, alike, clipped_gains, group_advantages, ratios_of
from digirl_dist.algorithm.hindsight import NO_HINDSIGHT, Hindsight
from digirl_dist.algorithm.imitation import (
    Example,
    learned_of,
    log_probs_in_parts,
    log_probs_of,
    unsolved_steps,
    weights_in,
    with_held,
    worth_repeating,
)
from digirl_dist.algorithm.optimizer import Fit, MinibatchOptimizer, OptimizerIsTheState
from digirl_dist.algorithm.options import GrpoOptions
from digirl_dist.algorithm.selection import task_weights
from digirl_dist.algorithm.totals import totals
from digirl_dist.parallel.peers import ALONE, Peers
from digirl_dist.tasks import Key, Ticket
from digirl_dist.trajectory import Step, Trajectory

_LATELY = 16
_ALIKE, _LAG, _FRESH = "alike", "lag", "fresh"
_BETTER = "its episode ended better than its task lately does"

Start = tuple[str, int]
"""Task and seed, which all episodes of a group share."""

Members = list[Trajectory]
"""The episodes of a group."""


@dataclass(frozen=True)
class Waiting:
    """The starts of those tickets that had not run when an iteration began, and when it ended."""

    before: frozenset[Start]
    after: frozenset[Start]


@dataclass(frozen=True, eq=False)
class Batch:
    """What the objective is computed from, all of shape [B]."""

    old: torch.Tensor
    """Log-probabilities that the ratios are taken to."""
    advantages: torch.Tensor
    weights: torch.Tensor
    """What each step counts for: 1/H of its episode, times the correction for the policy that acted."""
    imitated: torch.Tensor
    """Whether a step is imitated, with this weight alone."""

    def __getitem__(self, rows: list[int]) -> Batch:
        return Batch(self.old[rows], self.advantages[rows], self.weights[rows], self.imitated[rows])

    def imitating(self, weights: torch.Tensor) -> Batch:
        """The same with further rows, which are imitated, each with its weight."""
        nothing, yes = torch.zeros(len(weights)), torch.ones(len(weights), dtype=torch.bool)
        parts = (self.old, nothing), (self.advantages, nothing), (self.weights, weights), (self.imitated, yes)
        return Batch(*(torch.cat(part) for part in parts))


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
        hindsight: Hindsight = NO_HINDSIGHT,
    ) -> None:
        self._agent = agent
        self._hindsight = hindsight
        self._settings = settings
        self._peers = peers
        self._optimizer = MinibatchOptimizer(agent.parameters(), settings.actor, seed, "the actor's loss", peers)
        self._waiting: Waiting | None = None

    def expect(self, before: Sequence[Ticket], after: Sequence[Ticket]) -> None:
        """See ``ExpectingAlgorithm``; without this call, every group is waited for until it is whole."""
        self._waiting = Waiting(*(frozenset((one.task.id, one.seed) for one in each) for each in (before, after)))

    def update(self, fresh: Sequence[Trajectory], replay: Sequence[Trajectory]) -> dict[str, float]:
        self._agent.train(False)
        groups = self._groups(fresh, replay)
        telling = [members for members in groups if _differ(members)]
        rows = [Example(step.observation, step.action) for members in telling for step in _steps(members)]
        own = self._batch(telling, rows)
        imitated, relabelled = self._imitated(replay)
        held = self._held(replay, imitated)
        batch = own.imitating(self._imitation_weights([*imitated, *held]))
        everything = [*rows, *imitated, *held]
        fit = self._optimizer.fit(len(everything), lambda some: self._loss(everything, batch, some), fresh=len(rows))
        kept, imitating, holding = learned_of(fit, rows, imitated, held)
        learned = {"kept_steps": kept, "left_undrawn": len(rows) - kept}
        beside = {"imitated_steps": imitating, "unsolved_steps": holding}
        counts = totals({**_counts(fresh, groups, telling), **learned, **beside, **_lags(fresh)}, self._peers)
        figures = {"actor_loss": fit.loss, "skipped_steps": float(fit.skipped)}
        return {**figures, **_shares(counts), **relabelled, **self._moved(rows, own, fit)}

    def _groups(self, fresh: Sequence[Trajectory], replay: Sequence[Trajectory]) -> list[Members]:
        return completed_groups(fresh, replay, self._settings.group_size, self._waiting)

    def explain(
        self,
        episode: Trajectory,
        fresh: Sequence[Trajectory],
        replay: Sequence[Trajectory],
        after: Mapping[str, Any],
    ) -> list[StepOutcome]:
        groups = self._groups(fresh, replay)
        members = next((each for each in groups if _start(each[0]) == _start(episode)), [])
        advantages = group_advantages(np.array([one.reward for one in members])) if members else ()
        own = next((a for one, a in zip(members, advantages, strict=True) if one.episode_id == episode.episode_id), 0.0)
        if not own:
            reason = "all episodes of its group came out alike" if members else "its group is not complete yet"
            left = StepOutcome(False, reason, advantage=0.0)
            better = replace(left, kept=True, reason=f"{reason}, but it is imitated: {_BETTER}")
            rows, _ = self._imitated(replay)
            outcomes = [better if weight else left for weight in weights_in(rows, episode, replay)]
            return with_held(outcomes, weights_in(self._held(replay, rows), episode, replay))
        reason = f"its episode came out {'better' if own > 0 else 'worse'} than its group"
        return [StepOutcome(True, reason, 1 / len(episode.steps), advantage=float(own)) for _ in episode.steps]

    def _batch(self, telling: Sequence[Members], rows: Sequence[Example]) -> Batch:
        acted = torch.tensor([step.log_prob for members in telling for step in _steps(members)])
        with torch.no_grad():
            old = log_probs_in_parts(self._agent, rows).cpu() if rows else acted
        found = [group_advantages(np.array([one.reward for one in members])) for members in telling]
        lengths = torch.tensor([len(episode.steps) for members in telling for episode in members], dtype=torch.long)
        advantages = torch.tensor(np.concatenate([np.empty(0), *found])).repeat_interleave(lengths)
        steps, episodes = self._peers.total(torch.tensor([len(rows), len(lengths)])).tolist()
        per_step = (steps / max(1, episodes) / lengths).repeat_interleave(lengths)
        weights = per_step * importance(old, acted, self._settings.max_importance)
        return Batch(old, advantages, weights, torch.zeros(len(rows), dtype=torch.bool))

    def _imitated(self, replay: Sequence[Trajectory]) -> tuple[list[Example], dict[str, float]]:
        """The steps of episodes that ended better than their task lately does, heavier the more it was.

        Self-imitation, (R − V)₊ log π (arXiv 1806.05635, equation 2), where V is the mean return of the task's newest
        ``_LATELY`` episodes; so a task that is mastered leaves the room to others.
        """
        if not self._settings.replay_weight:
            return [], {}
        episodes, relabelled = self._hindsight.added(replay, self._peers)
        surplus = surpluses([one.reward for one in episodes], _tasks(episodes), expected_returns(replay))
        better = [(episode, more) for episode, more in zip(episodes, surplus, strict=True) if more > 0]
        shares = task_weights(_tasks([episode for episode, _ in better]))
        worth = self._settings.discount, self._settings.erase_loops
        pairs = zip(better, shares, strict=True)
        return [row for (one, more), share in pairs for row in worth_repeating(one, share * more, *worth)], relabelled

    def _held(self, replay: Sequence[Trajectory], imitated: Sequence[Example]) -> list[Example]:
        """The steps that hold the policy open for unsolved tasks."""
        return unsolved_steps(replay, self._settings.unsolved, imitated)

    def _imitation_weights(self, imitated: Sequence[Example]) -> torch.Tensor:
        """Of mean ``replay_weight`` over the rows of all ranks."""
        weights = torch.tensor([row.weight for row in imitated], dtype=torch.float64)
        total, rows = self._peers.total(torch.stack([weights.sum(), weights.new_tensor(len(weights))])).tolist()
        return (weights * (self._settings.replay_weight * rows / total) if total else weights).float()

    def _loss(self, rows: Sequence[Example], batch: Batch, chosen: list[int]) -> torch.Tensor:
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

    def _moved(self, rows: Sequence[Example], batch: Batch, fit: Fit) -> dict[str, float]:
        """How far the update went: the share of clipped ratios, and the mean of −log ratio.

        Over the rows of all ranks that were learned from; nothing if no rank has any.
        """
        with torch.no_grad():
            now = log_probs_in_parts(self._agent, rows).cpu() if rows else batch.old
        learned = [place for place in range(len(rows)) if place in fit.learned]
        ratio = ratios_of(now, batch.old)[learned]
        outside = (ratio < 1 - self._settings.clip_low) | (ratio > 1 + self._settings.clip_high)
        own = {"rows": len(learned), "outside": float(outside.sum()), "moved": float(ratio.double().log().sum())}
        found = totals(own, self._peers)
        count = found["rows"]
        return {"clipped_share": found["outside"] / count, "kl_from_old": -found["moved"] / count} if count else {}


def completed_groups(
    fresh: Sequence[Trajectory], replay: Sequence[Trajectory], size: int, waiting: Waiting | None = None
) -> list[Members]:
    """The groups of ``size`` episodes of one task and seed that this iteration completes.

    Where iterations close early, the longest episodes of a group come later than the others. Learning from a group
    without them would favour short episodes, so it waits for its last ones in ``replay``, which ends with ``fresh``.
    A group whose tickets are not ``waiting`` any more counts with the episodes that it has, if these are two: the
    others got lost. An offline episode that started alike is none of them: it comes earlier in ``replay``.
    """
    groups: dict[Start, dict[Key, Trajectory]] = defaultdict(dict)
    for episode in replay:
        groups[_start(episode)][episode.ticket.key] = episode
    ended = sorted(waiting.before - waiting.after) if waiting else []
    found = []
    for start in dict.fromkeys([*map(_start, fresh), *ended]):
        members = list(groups[start].values())
        if waiting:  # of a plan, whose groups begin in one iteration each
            members = [one for one in members if one.ticket.iteration == members[-1].ticket.iteration]
        is_over = waiting is not None and start not in waiting.after
        if len(members) >= (min(2, size) if is_over else size):
            found.append(members[-size:])
    return found


def clipped_loss(log_probs: torch.Tensor, batch: Batch, clip_low: float, clip_high: float) -> torch.Tensor:
    """−mean of w times what ``clipped_gains`` says, with ρ = exp(log π − log π_old); all shapes are [B].

    arXiv 2402.03300, equation 3 without its KL term. Of steps that are imitated w · log π.
    """
    old, advantages, weights = (part.to(log_probs) for part in (batch.old, batch.advantages, batch.weights))
    gains = clipped_gains(ratios_of(log_probs, old), advantages, clip_low, clip_high)
    return -(weights * torch.where(batch.imitated.to(log_probs.device), log_probs, gains)).mean()


def expected_returns(episodes: Sequence[Trajectory]) -> dict[str, float]:
    """The mean return of the newest ``_LATELY`` episodes of each task; ``episodes`` are in the order of time."""
    found: dict[str, list[float]] = defaultdict(list)
    for episode in episodes:
        found[episode.ticket.task.id].append(episode.reward)
    return {task: float(np.mean(returns[-_LATELY:])) for task, returns in found.items()}


def surpluses(returns: Sequence[float], tasks: Sequence[str], expected: Mapping[str, float]) -> list[float]:
    """(R − V)₊ of each episode, 0 within rounding; a task without any of its own has V = 0."""
    found = [one - expected.get(task, 0.0) for one, task in zip(returns, tasks, strict=True)]
    return [more if more > ROUNDING * abs(one) else 0.0 for more, one in zip(found, returns, strict=True)]


def importance(log_probs: torch.Tensor, acted: torch.Tensor, most: float) -> torch.Tensor:
    """min(π / μ, ``most``) of log-probabilities log π now and log μ when it acted; shape [B].

    Truncated importance weights (arXiv 1802.01561, section 4.1); 1 where the policy that acted is the present one.
    """
    return ratios_of(log_probs, acted).clamp(max=most)


def _counts(fresh: Sequence[Trajectory], groups: Sequence[Members], telling: Sequence[Members]) -> dict[str, int]:
    """How much is learned from, and how many steps are left because their group is alike or has not ended."""
    kept = sum(len(_steps(members)) for members in telling)
    complete = sum(len(_steps(members)) for members in groups)
    starts = {_start(members[0]) for members in groups}
    return {
        "kept_trajectories": sum(map(len, telling)),
        "left_alike": complete - kept,
        "left_waiting": sum(len(each.steps) for each in fresh if _start(each) not in starts),
        "groups": len(groups),
        _ALIKE: len(groups) - len(telling),
    }


def _shares(counts: Mapping[str, float]) -> dict[str, float]:
    """The counts of all ranks, with shares of them in place of what only these are made from."""
    alike, lag, fresh = (counts[name] for name in (_ALIKE, _LAG, _FRESH))
    shown = {name: count for name, count in counts.items() if name not in (_ALIKE, _LAG, _FRESH)}
    shares = {"groups_alike_share": alike / counts["groups"] if counts["groups"] else 0.0}
    return {"policy_lag": lag / fresh if fresh else 0.0, **shown, **shares}


def _differ(members: Members) -> bool:
    """A group whose episodes all came out alike says nothing."""
    return not alike(np.array([episode.reward for episode in members]))


def _tasks(episodes: Sequence[Trajectory]) -> list[str]:
    return [episode.ticket.task.id for episode in episodes]


def _steps(members: Members) -> list[Step]:
    return [step for episode in members for step in episode.steps]


def _start(episode: Trajectory) -> Start:
    return episode.ticket.task.id, episode.ticket.seed


def _lags(fresh: Sequence[Trajectory]) -> dict[str, int]:
    """Updates that were made between the policies that acted and the one that learns from them, and of how many."""
    now = max((episode.ticket.iteration for episode in fresh), default=0)
    return {_LAG: sum(now - episode.ticket.policy_version for episode in fresh), _FRESH: len(fresh)}
