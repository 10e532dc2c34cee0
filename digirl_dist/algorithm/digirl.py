"""DigiRL: imitate the steps that turned out better than expected, in the episodes that did (arXiv 2406.11896)."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch

from digirl_dist.agent import Agent, critic
from digirl_dist.algorithm.advantages import (
    doubly_robust_advantages,
    instruction_advantages,
    released_advantages,
    returns_to_go,
)
from digirl_dist.algorithm.hindsight import USUAL, Experience
from digirl_dist.algorithm.imitation import Imitation
from digirl_dist.algorithm.optimizer import Fit, nobody_has, totals
from digirl_dist.algorithm.options import DigirlOptions
from digirl_dist.algorithm.selection import held_out, leading_on, top_quantile, unsolved_steps
from digirl_dist.algorithm.table import (
    HELD_OUT,
    IN_LOOPS,
    KEPT,
    LOOP,
    NOT_CHOSEN,
    NOT_GOOD,
    UNDRAWN,
    UNSOLVED,
    Learned,
    Row,
    counts,
)
from digirl_dist.algorithm.values import SuccessValue, looked_at
from digirl_dist.errors import TrainingError
from digirl_dist.parallel.peers import ALONE, Peers
from digirl_dist.trajectory import Trajectory

_FRAMES = 2
"""Latest observations that the step-level value sees together."""
_MARGIN = 0.05
"""By how much a step must be better than expected by the released code."""

Advantage = Callable[[np.ndarray, np.ndarray], Any]
"""The advantages [H] of an episode's steps, from its rewards [H] and step-level values [H + 1]; may be the user's."""


@dataclass(frozen=True)
class Rule:
    """Which steps of an episode are good: those whose advantage is above a threshold."""

    advantages: Advantage
    horizon: int | None = None
    """The threshold is 1 / horizon; 0: it is 0; None: 1 / the episode's number of steps."""
    is_released: bool = False
    """As in the released code, there are two step-level value functions, of which the lesser counts; they also learn
    from what was seen after each step; and offline, episodes are ranked by their return alone."""

    def scores(self, returns: np.ndarray, values: np.ndarray, offline: bool) -> np.ndarray:
        """Returns how much each of N episodes deserves to be looked at; ``values`` are instruction-level."""
        if not self.is_released:
            return instruction_advantages(returns, values)
        return returns if offline else instruction_advantages(returns, np.clip(values, 1e-4, 1 - 1e-4))

    def threshold(self, steps: int) -> float:
        """Returns the advantage that a good step of an episode with so many steps exceeds.

        By the paper it is 1/H (section 4). H is the horizon of the task, the most steps that an episode may have, and
        not what this episode took: a success in its first step has the advantage 1, which no threshold below it may
        refuse. An H of 1 counts as 2, for no advantage exceeds 1.
        """
        return 0.0 if self.horizon == 0 else 1 / max(2, self.horizon or steps)


def paper_rule(lam: float, horizon: int | None = None) -> Rule:
    """Returns the paper's rule, for episodes of at most ``horizon`` steps (None: not known)."""
    return Rule(lambda rewards, values: doubly_robust_advantages(rewards, values, lam), horizon)


def released_rule(discount: float) -> Rule:
    """Returns the rule of the released code."""

    def advantages(rewards: np.ndarray, values: np.ndarray) -> np.ndarray:
        return released_advantages(rewards, values, np.array(returns_to_go(rewards.tolist(), discount)), _MARGIN)

    return Rule(advantages, horizon=0, is_released=True)


def own_rule(advantage: Advantage) -> Rule:
    """Returns the rule that an advantage of the user's must be above 0; all else is as in the paper."""
    name = getattr(advantage, "__name__", advantage)

    def advantages(rewards: np.ndarray, values: np.ndarray) -> np.ndarray:
        """Raises TrainingError for a function that does not return a finite number per step."""
        found = np.asarray(advantage(rewards, values))
        if found.shape != rewards.shape:
            raise TrainingError(f"{name} returned the shape {found.shape} for {len(rewards)} steps")
        if found.dtype.kind not in "biuf" or not np.isfinite(found).all():
            raise TrainingError(f"{name} returned {found.tolist()!r:.100}, not a finite number for each step")
        return found.astype(np.float64)

    return Rule(advantages, horizon=0)


@dataclass(frozen=True, eq=False)
class Seen:
    """An episode, and what value functions read [H + 1, F] of all that was seen in it, the final observation last."""

    episode: Trajectory
    features: torch.Tensor
    tried: bool = True
    """Whether this is what the policy was asked for, and not what it was relabelled with."""

    @property
    def rewards(self) -> np.ndarray:
        return np.array([step.reward for step in self.episode.steps])


class DigiRL:
    """Fulfils ``Algorithm``.

    Two value functions are fitted to the newest episodes: one of the first observation (how hard is the instruction?)
    and one of every observation. The first chooses episodes, the second steps; the chosen steps are imitated.
    """

    def __init__(
        self,
        agent: Agent,
        settings: DigirlOptions,
        seed: int,
        peers: Peers = ALONE,
        rule: Rule | None = None,
        experience: Experience = USUAL,
    ) -> None:
        """``rule`` is by default the paper's, without a horizon."""
        self._agent = agent
        self._experience = experience
        self._settings = settings
        self._rule = rule or paper_rule(settings.lam)
        self._peers = peers
        self._imitation = Imitation(agent, settings.actor, seed, peers)
        _, self._input_size = critic(agent)
        self._instruction_value = SuccessValue(self._input_size, settings.instruction_value, seed + 1, peers)
        stacked, critics = self._input_size * _FRAMES, 1 + self._rule.is_released
        self._step_value = SuccessValue(stacked, settings.step_value, seed + 2, peers, critics)
        self._updates = 0

    def update(self, fresh: Sequence[Trajectory], replay: Sequence[Trajectory]) -> Learned:
        offline = nobody_has(fresh, self._peers)
        own = [one for one in replay if not one.is_offline][-self._settings.value_episodes :]
        seen, relabelled = self._look_at(replay if offline else [*(one for one in replay if one.is_offline), *own])
        learn = [each for each in seen if not self._is_held_out(each.episode)]
        measure = [each for each in seen if self._is_held_out(each.episode)]
        # Before the values have seen how these episodes ended, as in the released code.
        scores, scores_to_measure = self._scores(learn, offline), self._scores(measure, offline)
        fits = self._fit_values(learn)
        table, measured = self._judged(learn, scores), self._judged(measure, scores_to_measure)
        figures = {**{f"{name}_loss": fit.loss for name, fit in fits.items()}, **self._measure(measure, measured)}
        if self._updates < self._settings.warmup_iterations:
            _leave_out(table, NOT_CHOSEN, "the first updates fit the value functions only")
        self._updates += 1
        rows = [row for row in table if row.weight]
        tried = [] if offline else [each for each in replay if not self._is_held_out(each)]
        held = unsolved_steps(tried, self._experience.unsolved, rows)
        fits["actor"] = self._imitation.fit([*rows, *held])
        figures["actor_loss"] = fits["actor"].loss
        figures["skipped_steps"] = float(sum(fit.skipped for fit in fits.values()))
        figures["actor_validation_loss"] = self._imitation.measure(measured)
        _leave_out(measured, HELD_OUT, "the episode is held out, to validate the value functions")
        table += [*held, *measured]
        return Learned({**figures, **self._counts(table), **relabelled}, table)

    def state_dict(self) -> dict[str, Any]:
        return {
            "imitation": self._imitation.state_dict(),
            "instruction_value": self._instruction_value.state_dict(),
            "step_value": self._step_value.state_dict(),
            "updates": self._updates,
        }

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        self._imitation.load_state_dict(state["imitation"])
        self._instruction_value.load_state_dict(state["instruction_value"])
        self._step_value.load_state_dict(state["step_value"])
        self._updates = state["updates"]

    def _is_held_out(self, episode: Trajectory) -> bool:
        return held_out(episode, self._settings.VALIDATION_SHARE)

    def _look_at(self, newest: Sequence[Trajectory]) -> tuple[list[Seen], dict[str, float]]:
        """Returns those episodes and what they are relabelled to, and the share of the latter as a figure."""
        episodes, relabelled = self._experience.hindsight.added(newest, self._peers)
        tried = set(map(id, newest))
        parts = zip(episodes, looked_at(self._agent, episodes, self._peers), strict=True)
        return [Seen(episode, part, id(episode) in tried) for episode, part in parts], relabelled

    def _scores(self, seen: Sequence[Seen], offline: bool) -> np.ndarray:
        """Returns by how much each episode ended better than its instruction let expect, shape [N]."""
        returns = np.array([each.episode.reward for each in seen])
        values = self._instruction_value(_starts(seen, self._input_size)[0]).double().numpy()
        return self._rule.scores(returns, values, offline)

    def _fit_values(self, seen: Sequence[Seen]) -> dict[str, Fit]:
        """The instruction-level one on what was tried alone, for what is relabelled always succeeds."""
        tried = [each for each in seen if each.tried]
        return {
            "instruction_value": self._instruction_value.fit(*_starts(tried, self._input_size)),
            "step_value": self._step_value.fit(*self._step_rows(seen)),
        }

    def _judged(self, seen: Sequence[Seen], scores: np.ndarray) -> list[Row]:
        """Returns a row for each step, with a weight where it is imitated: as heavy as its episode ended better."""
        leading = set(top_quantile(scores, self._settings.top_share))
        weights = [float(score) if index in leading and score > 0 else 0.0 for index, score in enumerate(scores)]
        return [row for each, weight in zip(seen, weights, strict=True) for row in self._rows(each, weight)]

    def _rows(self, seen: Seen, weight: float) -> list[Row]:
        values = self._step_value(stack(seen.features, _FRAMES)).double().numpy()
        advantages, threshold = self._rule.advantages(seen.rewards, values), self._rule.threshold(len(seen.rewards))
        leads = leading_on(seen.episode, self._experience.erase_loops)
        rows = []
        for place, (advantage, leads_on) in enumerate(zip(advantages.tolist(), leads, strict=True)):
            good = advantage > threshold
            row = Row(seen.episode, place, KEPT, "", weight, advantage, float(values[place]))
            row.reason = f"its advantage {advantage:.3g} is {'above' if good else 'not above'} {threshold:.3g}"
            if not weight:
                row.outcome, row.reason = NOT_CHOSEN, "it ended no better than its instruction let expect"
            elif not good:
                row.outcome, row.weight = NOT_GOOD, 0.0
            elif not leads_on:
                row.outcome, row.weight, row.reason = IN_LOOPS, 0.0, LOOP
            rows.append(row)
        return rows

    def _counts(self, table: Sequence[Row]) -> dict[str, float]:
        chosen = {id(row.episode) for row in table if row.outcome in (KEPT, NOT_GOOD, IN_LOOPS)}
        outcomes = (KEPT, UNSOLVED, HELD_OUT, NOT_CHOSEN, NOT_GOOD, IN_LOOPS, UNDRAWN)
        return totals({"kept_trajectories": len(chosen), **counts(table, *outcomes)}, self._peers)

    def _measure(self, seen: Sequence[Seen], rows: Sequence[Row]) -> dict[str, float]:
        """Returns how well the values do on what is held out on all ranks; nothing if none holds any out."""
        measured = {
            "instruction_value": self._instruction_value.measure(*_starts(seen, self._input_size)),
            "step_value": self._step_value.measure(*self._step_rows(seen)),
        }
        figures = {
            f"{value}_validation_{name}": figure
            for value, found in measured.items()
            if found is not None
            for name, figure in found._asdict().items()
        }
        return {**figures, **self._measure_advantages(seen, rows)}

    def _measure_advantages(self, seen: Sequence[Seen], rows: Sequence[Row]) -> dict[str, float]:
        """Returns how often a return came after the steps that are called good, and after any."""
        won = [togo > 0 for each in seen for togo in returns_to_go(each.rewards.tolist(), 1.0)]
        good = [(row.advantage or 0.0) > self._rule.threshold(len(row.episode.steps)) for row in rows]
        both = sum(step_won and step_good for step_won, step_good in zip(won, good, strict=True))
        count = totals({"steps": len(won), "won": sum(won), "good": sum(good), "both": both}, self._peers)
        precision = {"good_steps_validation_precision": count["both"] / count["good"]} if count["good"] else {}
        return {**precision, "steps_validation_won": count["won"] / count["steps"]} if count["steps"] else {}

    def _step_rows(self, seen: Sequence[Seen]) -> tuple[torch.Tensor, list[float]]:
        """Returns what the step-level value learns from: stacked features, and how much of a success came after."""
        stacked = [stack(each.features, _FRAMES) for each in seen]
        features = [rows[:-1] for rows in stacked]
        labels = [_success(togo) for each in seen for togo in returns_to_go(each.rewards.tolist(), 1.0)]
        if self._rule.is_released:
            features += [rows[1:] for rows in stacked]
            labels += labels
        return torch.cat([torch.empty(0, self._input_size * _FRAMES), *features]), labels


def stack(features: torch.Tensor, frames: int) -> torch.Tensor:
    """Each row of [N, F] after the ``frames`` − 1 rows before it, oldest first: [N, frames · F].

    What is missing before the first row is the first row again, as in DigiRL's released code (``framestack``).
    """
    padded = torch.cat([features[:1].expand(frames - 1, -1), features])
    return torch.cat([padded[first : first + len(features)] for first in range(frames)], dim=1)


def _leave_out(rows: Sequence[Row], outcome: str, reason: str) -> None:
    for row in rows:
        row.outcome, row.reason, row.weight = outcome, reason, 0.0


def _starts(seen: Sequence[Seen], width: int) -> tuple[torch.Tensor, list[float]]:
    """What the instruction-level value learns from: features of first observations, and how much of a success came."""
    first = torch.cat([torch.empty(0, width), *(each.features[:1] for each in seen)])
    return first, [_success(each.episode.reward) for each in seen]


def _success(total: float) -> float:
    """How much of a success a return is: 1 from 1 on, nothing from 0 down."""
    return min(1.0, max(0.0, total))
