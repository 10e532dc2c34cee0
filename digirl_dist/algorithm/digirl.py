"""DigiRL: imitate the steps that turned out better than expected, in the episodes that did (arXiv 2406.11896)."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Protocol

import numpy as np
import torch

from digirl_dist.agent import Agent, contract, critic
from digirl_dist.algorithm import LOOP, StepOutcome
from digirl_dist.algorithm.advantages import (
    doubly_robust_advantages,
    instruction_advantages,
    released_advantages,
    returns_to_go,
)
from digirl_dist.algorithm.hindsight import NO_HINDSIGHT, Hindsight
from digirl_dist.algorithm.imitation import Example, Imitation, learned_of, unsolved_steps, weights_in, with_held
from digirl_dist.algorithm.optimizer import Fit
from digirl_dist.algorithm.options import DigirlOptions
from digirl_dist.algorithm.selection import held_out, leading_on, top_quantile
from digirl_dist.algorithm.totals import nobody_has, totals
from digirl_dist.algorithm.values import SuccessValue
from digirl_dist.errors import TrainingError
from digirl_dist.parallel.peers import ALONE, Peers
from digirl_dist.trajectory import Observation, Trajectory

_OBSERVATIONS_AT_ONCE = 256

OwnAdvantage = Callable[[np.ndarray, np.ndarray], Any]
"""The advantages [H] of an episode's steps, from its rewards [H] and step-level values [H + 1]: the user's."""


class Rule(Protocol):
    """Where the paper and the released code differ: what is imitated of which episodes, and how."""

    @property
    def critics(self) -> int:
        """Step-level value functions, of which the lesser counts."""

    @property
    def after(self) -> bool:
        """Whether the step-level value also learns from what was seen after each step."""

    def scores(self, returns: np.ndarray, values: np.ndarray, offline: bool) -> np.ndarray:
        """How much each of N episodes deserves to be looked at; ``values`` are instruction-level."""

    def advantages(self, rewards: np.ndarray, values: np.ndarray) -> np.ndarray:
        """Of each of H steps, how much better it was than expected; ``values`` has shape [H + 1]."""

    def threshold(self, steps: int) -> float:
        """The advantage that a good step of an episode with so many steps exceeds."""


@dataclass(frozen=True)
class PaperRule:
    """The doubly robust advantage must exceed 1/H (arXiv 2406.11896, section 4).

    H is the horizon of the task, the most steps that an episode may have, and not what this episode took: a success in
    its first step has the advantage 1, which no threshold below it may refuse. Where there is no horizon, it is what
    the episode took. An H of 1 counts as 2, for no advantage exceeds 1.
    """

    lam: float
    horizon: int | None = None
    critics: int = 1
    after: bool = False

    def scores(self, returns: np.ndarray, values: np.ndarray, offline: bool) -> np.ndarray:
        return instruction_advantages(returns, values)

    def advantages(self, rewards: np.ndarray, values: np.ndarray) -> np.ndarray:
        return doubly_robust_advantages(rewards, values, self.lam)

    def threshold(self, steps: int) -> float:
        return 1 / max(2, self.horizon or steps)


@dataclass(frozen=True)
class ReleasedRule:
    """The released code's advantage must be positive; offline, episodes are ranked by their return alone."""

    discount: float
    margin: float
    critics: int = 2
    after: bool = True

    def scores(self, returns: np.ndarray, values: np.ndarray, offline: bool) -> np.ndarray:
        return returns if offline else instruction_advantages(returns, np.clip(values, 1e-4, 1 - 1e-4))

    def advantages(self, rewards: np.ndarray, values: np.ndarray) -> np.ndarray:
        returns = np.array(returns_to_go(rewards.tolist(), self.discount))
        return released_advantages(rewards, values, returns, self.margin)

    def threshold(self, steps: int) -> float:
        return 0.0


@dataclass(frozen=True)
class OwnRule:
    """An advantage of the user's must be positive; all else is as in the paper."""

    advantage: OwnAdvantage
    critics: int = 1
    after: bool = False

    def scores(self, returns: np.ndarray, values: np.ndarray, offline: bool) -> np.ndarray:
        return instruction_advantages(returns, values)

    def advantages(self, rewards: np.ndarray, values: np.ndarray) -> np.ndarray:
        """Raises TrainingError for a function that does not return a finite number per step."""
        found, name = np.asarray(self.advantage(rewards, values)), getattr(self.advantage, "__name__", self.advantage)
        if found.shape != rewards.shape:
            raise TrainingError(f"{name} returned the shape {found.shape} for {len(rewards)} steps")
        if found.dtype.kind not in "biuf" or not np.isfinite(found).all():
            raise TrainingError(f"{name} returned {found.tolist()!r:.100}, not a finite number for each step")
        return found

    def threshold(self, steps: int) -> float:
        return 0.0


def good_steps(rule: Rule, rewards: np.ndarray, values: np.ndarray) -> np.ndarray:
    """Of each of H steps, whether it was better than expected; ``values`` has shape [H + 1]."""
    return rule.advantages(rewards, values) > rule.threshold(len(rewards))


def rule_of(settings: DigirlOptions, horizon: int | None, own: OwnAdvantage | None = None) -> Rule:
    """The rule that the settings name, for episodes of at most ``horizon`` steps (None: not known)."""
    if own is not None:
        return OwnRule(own)
    if settings.advantage == "code":
        return ReleasedRule(settings.discount, settings.margin)
    return PaperRule(settings.lam, horizon)


@dataclass(frozen=True, eq=False)
class Seen:
    """An episode, and what value functions read [H + 1, F] of all that was seen in it, the final observation last."""

    episode: Trajectory
    features: torch.Tensor
    tried: bool = True
    """Whether this is what the policy was asked for, and not what it was relabelled with."""
    weight: float = 1.0
    """What each of its good steps counts for."""

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
        horizon: int | None = None,
        own: OwnAdvantage | None = None,
        hindsight: Hindsight = NO_HINDSIGHT,
    ) -> None:
        self._agent = agent
        self._hindsight = hindsight
        self._settings = settings
        self._rule = rule_of(settings, horizon, own)
        self._peers = peers
        self._imitation = Imitation(agent, settings.actor, seed, peers)
        _, self._input_size = critic(agent)
        self._instruction_value = SuccessValue(self._input_size, settings.instruction_value, seed + 1, peers)
        stacked = self._input_size * settings.frames
        self._step_value = SuccessValue(stacked, settings.step_value, seed + 2, peers, self._rule.critics)
        self._updates = 0

    def update(self, fresh: Sequence[Trajectory], replay: Sequence[Trajectory]) -> dict[str, float]:
        share = self._settings.validation_share
        offline = nobody_has(fresh, self._peers)
        seen, relabelled = self._look_at(replay if offline else replay[-self._settings.value_episodes :])
        learn = [each for each in seen if not held_out(each.episode, share)]
        measure = [each for each in seen if held_out(each.episode, share)]
        # Before the values have seen how these episodes ended, as in the released code.
        chosen, chosen_to_measure = self._chosen(learn, offline), self._chosen(measure, offline)
        fits = self._fit_values(learn)
        figures = {**{f"{name}_loss": fit.loss for name, fit in fits.items()}, **self._measure_values(measure)}
        if self._updates < self._settings.warmup_iterations:
            chosen = []
        self._updates += 1
        rows, left = self._examples(chosen)
        held = self._held(replay, rows, offline)
        fits["actor"] = self._imitation.fit([*rows, *held])
        imitated, holding = learned_of(fits["actor"], rows, held)
        figures["actor_loss"] = fits["actor"].loss
        figures["skipped_steps"] = float(sum(fit.skipped for fit in fits.values()))
        figures["actor_validation_loss"] = self._imitation.measure(self._examples(chosen_to_measure)[0])
        counts = {
            "kept_trajectories": len(chosen),
            "kept_steps": imitated,
            "unsolved_steps": holding,
            **left,
            "left_not_chosen": _steps(learn) - _steps(chosen),
            "left_undrawn": len(rows) - imitated,
        }
        return {**figures, **totals(counts, self._peers), **relabelled}

    def explain(
        self,
        episode: Trajectory,
        fresh: Sequence[Trajectory],
        replay: Sequence[Trajectory],
        after: Mapping[str, Any],
    ) -> list[StepOutcome]:
        seen, _ = self._look_at(replay[-self._settings.value_episodes :] if fresh else replay)
        learn = [each for each in seen if not held_out(each.episode, self._settings.validation_share)]
        chosen, rests = self._chosen(learn, not fresh), self._updates < self._settings.warmup_iterations
        self.load_state_dict(after)
        own = next((each for each in seen if each.episode.episode_id == episode.episode_id), None)
        if own is None:
            return [StepOutcome(False, "newer episodes took its place") for _ in episode.steps]
        if own not in learn:
            return self._outcomes(own, "the episode is held out, to validate the value functions")
        if rests:
            return self._outcomes(own, "the first updates fit the value functions only")
        heavy = next((each for each in chosen if each.episode is own.episode), None)
        outcomes = self._outcomes(heavy or own, "" if heavy else "it ended no better than its instruction let expect")
        held = self._held(replay, self._examples(chosen)[0], not fresh)
        return with_held(outcomes, weights_in(held, episode, replay))

    def _held(self, replay: Sequence[Trajectory], rows: Sequence[Example], offline: bool) -> list[Example]:
        """The steps that hold the policy open for unsolved tasks; none offline, where nobody tries."""
        learn = [] if offline else [each for each in replay if not held_out(each, self._settings.validation_share)]
        return unsolved_steps(learn, self._settings.unsolved, rows)

    def _outcomes(self, seen: Seen, out: str) -> list[StepOutcome]:
        """``out`` is why the whole episode was left out; empty if it was not."""
        values = self._step_value(stack(seen.features, self._settings.frames)).double().numpy()
        advantages, threshold = self._rule.advantages(seen.rewards, values), self._rule.threshold(len(seen.rewards))
        found = []
        for value, advantage, leads_on in zip(values[:-1], advantages, self._on_the_way(seen), strict=True):
            above = advantage > threshold
            better = f"its advantage {advantage:.3g} is {'above' if above else 'not above'} {threshold:.3g}"
            kept = bool(not out and leads_on and above)
            reason = out or (better if leads_on else LOOP)
            found.append(StepOutcome(kept, reason, kept * seen.weight, float(value), float(advantage)))
        return found

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

    def _look_at(self, newest: Sequence[Trajectory]) -> tuple[list[Seen], dict[str, float]]:
        """Those episodes and what they are relabelled to, and the share of the latter as a figure."""
        episodes, relabelled = self._hindsight.added(newest, self._peers)
        tried = set(map(id, newest))
        lengths = [len(episode.steps) + 1 for episode in episodes]
        features = self._features([observation for episode in episodes for observation in _observations(episode)])
        parts = zip(episodes, torch.split(features, lengths), strict=True)
        return [Seen(episode, part, id(episode) in tried) for episode, part in parts], relabelled

    def _features(self, observations: Sequence[Observation]) -> torch.Tensor:
        """Of any number of observations: [N, F]."""
        firsts = range(0, len(observations), _OBSERVATIONS_AT_ONCE)
        parts = [contract.inputs(self._agent, observations[k : k + _OBSERVATIONS_AT_ONCE]).cpu() for k in firsts]
        return torch.cat([torch.empty(0, self._input_size), *parts]).detach()

    def _fit_values(self, seen: Sequence[Seen]) -> dict[str, Fit]:
        """The instruction-level one on what was tried alone, for what is relabelled always succeeds."""
        tried = [each for each in seen if each.tried]
        return {
            "instruction_value": self._instruction_value.fit(*_starts(tried, self._input_size)),
            "step_value": self._step_value.fit(*self._step_rows(seen)),
        }

    def _measure_values(self, seen: Sequence[Seen]) -> dict[str, float]:
        """What is held out on all ranks; nothing if none holds any out."""
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
        return {**figures, **self._measure_advantages(seen)}

    def _measure_advantages(self, seen: Sequence[Seen]) -> dict[str, float]:
        """How often a return came after the steps that are called good, and after any."""
        none = np.empty(0, bool)
        good = np.concatenate([none, *(self._good(each) for each in seen)])
        won = np.concatenate([none, *(np.array(returns_to_go(each.rewards.tolist(), 1.0)) > 0 for each in seen)])
        own = {"steps": len(won), "won": won.sum(), "good": good.sum(), "both": (won & good).sum()}
        count = totals(own, self._peers)
        precision = {"good_steps_validation_precision": count["both"] / count["good"]} if count["good"] else {}
        return {**precision, "steps_validation_won": count["won"] / count["steps"]} if count["steps"] else {}

    def _step_rows(self, seen: Sequence[Seen]) -> tuple[torch.Tensor, list[float]]:
        """What the step-level value learns from: stacked features, and how much of a success came after them."""
        stacked = [stack(each.features, self._settings.frames) for each in seen]
        features = [rows[:-1] for rows in stacked]
        labels = [_success(togo) for each in seen for togo in returns_to_go(each.rewards.tolist(), 1.0)]
        if self._rule.after:
            features += [rows[1:] for rows in stacked]
            labels += labels
        width = self._input_size * self._settings.frames
        return torch.cat([torch.empty(0, width), *features]), labels

    def _chosen(self, seen: Sequence[Seen], offline: bool) -> list[Seen]:
        """The episodes that ended better than their instruction let expect, as heavy as they did."""
        returns = np.array([each.episode.reward for each in seen])
        values = self._instruction_value(_starts(seen, self._input_size)[0]).double().numpy()
        scores = self._rule.scores(returns, values, offline)
        leading = top_quantile(scores, self._settings.top_share)
        return [replace(seen[index], weight=float(scores[index])) for index in leading if scores[index] > 0]

    def _examples(self, chosen: Sequence[Seen]) -> tuple[list[Example], dict[str, float]]:
        """Their good steps, and how many are left out because they are not, or because they lie in loops."""
        good = [self._good(each) for each in chosen]
        kept = [self._on_the_way(each) & of_each for each, of_each in zip(chosen, good, strict=True)]
        rows = [
            Example(step.observation, step.action, each.weight)
            for each, keeps in zip(chosen, kept, strict=True)
            for step, keep in zip(each.episode.steps, keeps, strict=True)
            if keep
        ]
        all_good = float(sum(of_each.sum() for of_each in good))
        return rows, {"left_not_good": _steps(chosen) - all_good, "left_in_loops": all_good - len(rows)}

    def _good(self, seen: Seen) -> np.ndarray:
        """Of each step, whether the rule calls it good."""
        values = self._step_value(stack(seen.features, self._settings.frames)).double().numpy()
        return good_steps(self._rule, seen.rewards, values)

    def _on_the_way(self, seen: Seen) -> np.ndarray:
        """Of each step, whether it is outside of loops, as far as that matters."""
        return np.array(leading_on(seen.episode, self._settings.erase_loops))


def stack(features: torch.Tensor, frames: int) -> torch.Tensor:
    """Each row of [N, F] after the ``frames`` − 1 rows before it, oldest first: [N, frames · F].

    What is missing before the first row is the first row again, as in DigiRL's released code (``framestack``).
    """
    padded = torch.cat([features[:1].expand(frames - 1, -1), features])
    return torch.cat([padded[first : first + len(features)] for first in range(frames)], dim=1)


def _steps(seen: Sequence[Seen]) -> int:
    return sum(len(each.episode.steps) for each in seen)


def _observations(episode: Trajectory) -> list[Observation]:
    return [*(step.observation for step in episode.steps), episode.final_observation]


def _starts(seen: Sequence[Seen], width: int) -> tuple[torch.Tensor, list[float]]:
    """What the instruction-level value learns from: features of first observations, and how much of a success came."""
    first = torch.cat([torch.empty(0, width), *(each.features[:1] for each in seen)])
    return first, [_success(each.episode.reward) for each in seen]


def _success(total: float) -> float:
    """How much of a success a return is: 1 from 1 on, nothing from 0 down."""
    return min(1.0, max(0.0, total))
