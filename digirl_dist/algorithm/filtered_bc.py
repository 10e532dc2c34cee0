"""Filtered behaviour cloning: imitate the best trajectories."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from digirl_dist.agent import Agent
from digirl_dist.algorithm import LOOP, StepOutcome
from digirl_dist.algorithm.advantages import returns_to_go
from digirl_dist.algorithm.hindsight import NO_HINDSIGHT, Hindsight
from digirl_dist.algorithm.imitation import (
    Example,
    Imitation,
    fatal,
    learned_of,
    mean_weight,
    unsolved_steps,
    weights_in,
    with_held,
    worth_repeating,
)
from digirl_dist.algorithm.options import FilteredBcOptions
from digirl_dist.algorithm.selection import best, leading_on, task_weights
from digirl_dist.algorithm.totals import nobody_has, totals
from digirl_dist.parallel.peers import ALONE, Peers
from digirl_dist.trajectory import Trajectory

_AVOIDED = StepOutcome(True, "it ended the episode without success, and is made less likely")


class FilteredBC:
    """Fulfils ``Algorithm``: behaviour cloning of the replay's best trajectories."""

    def __init__(
        self,
        agent: Agent,
        settings: FilteredBcOptions,
        seed: int,
        peers: Peers = ALONE,
        hindsight: Hindsight = NO_HINDSIGHT,
    ) -> None:
        self._settings = settings
        self._hindsight = hindsight
        self._peers = peers
        self._imitation = Imitation(agent, settings.actor, seed, peers)

    def update(self, fresh: Sequence[Trajectory], replay: Sequence[Trajectory]) -> dict[str, float]:
        episodes, relabelled = self._hindsight.added(replay, self._peers)
        kept, shares = self._chosen(episodes)
        rows = self._rows(kept, shares)
        avoided = fatal(replay, len(rows), self._settings.avoid * mean_weight(rows))
        held = self._held(replay, rows, nobody_has(fresh, self._peers))
        fit = self._imitation.fit([*rows, *avoided, *held])
        imitated, unlearned, holding = learned_of(fit, rows, avoided, held)
        good = sum(len(worth_repeating(each, 1.0, self._settings.discount, erase_loops=False)) for each in kept)
        counts = {
            "kept_trajectories": len(kept),
            "kept_steps": imitated,
            "avoided_steps": unlearned,
            "unsolved_steps": holding,
            "left_not_chosen": _steps(episodes) - _steps(kept),
            "left_not_good": _steps(kept) - good,
            "left_in_loops": good - len(rows),
            "left_undrawn": len(rows) - imitated,
        }
        figures = {"actor_loss": fit.loss, "skipped_steps": float(fit.skipped)}
        return {**figures, **totals(counts, self._peers), **relabelled}

    def explain(
        self,
        episode: Trajectory,
        fresh: Sequence[Trajectory],
        replay: Sequence[Trajectory],
        after: Mapping[str, Any],
    ) -> list[StepOutcome]:
        episodes, _ = self._hindsight.added(replay)
        kept, shares = self._chosen(episodes)
        pairs = zip(kept, shares, strict=True)
        own = {each.ticket.task.id: share for each, share in pairs if each.episode_id == episode.episode_id}
        share = own.pop(episode.ticket.task.id, None)
        held = weights_in(self._held(replay, self._rows(kept, shares), not fresh), episode, replay)
        if share is None:
            lowest = min((each.reward for each in kept), default=self._settings.min_return)
            reason = f"its return {episode.reward:.3g} is not among the best, which begin at {lowest:.3g}"
            met = f"; the way to {', '.join(own)}, which it met, was learned under that instruction" if own else ""
            outcomes = with_held([StepOutcome(False, reason + met)] * len(episode.steps), held)
            return [*outcomes[:-1], _AVOIDED] if self._settings.avoid > 0 and fatal([episode], 1, 1.0) else outcomes
        togo = returns_to_go([step.reward for step in episode.steps], self._settings.discount)
        leads = leading_on(episode, self._settings.erase_loops)
        outcomes = [_outcome(worth, leads_on, share) for worth, leads_on in zip(togo, leads, strict=True)]
        return with_held(outcomes, held)

    def _rows(self, kept: Sequence[Trajectory], shares: Sequence[float]) -> list[Example]:
        """What is imitated of the chosen episodes, each of which counts for its share."""
        worth = self._settings.discount, self._settings.erase_loops
        pairs = zip(kept, shares, strict=True)
        return [row for episode, share in pairs for row in worth_repeating(episode, share, *worth)]

    def _held(self, replay: Sequence[Trajectory], rows: Sequence[Example], offline: bool) -> list[Example]:
        """The steps that hold the policy open for unsolved tasks; none offline, where nobody tries."""
        return [] if offline else unsolved_steps(replay, self._settings.unsolved, rows)

    def _chosen(self, episodes: Sequence[Trajectory]) -> tuple[list[Trajectory], list[float]]:
        """Returns the episodes to imitate, and what each counts for."""
        returns = np.array([episode.reward for episode in episodes])
        kept = [episodes[index] for index in best(returns, self._settings.top_share, self._settings.min_return)]
        return kept, task_weights([episode.ticket.task.id for episode in kept])

    def state_dict(self) -> dict[str, Any]:
        return {"imitation": self._imitation.state_dict()}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        self._imitation.load_state_dict(state["imitation"])


def _steps(episodes: Sequence[Trajectory]) -> int:
    return sum(len(episode.steps) for episode in episodes)


def _outcome(worth: float, leads_on: bool, share: float) -> StepOutcome:
    if not leads_on:
        return StepOutcome(False, LOOP)
    if worth <= 0:
        return StepOutcome(False, f"the return after it is {worth:.3g}")
    return StepOutcome(True, f"one of the best episodes, with a return of {worth:.3g} after it", share * worth)
