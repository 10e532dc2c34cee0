"""Maximum likelihood of chosen actions: the actor's update that the imitating algorithms share."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np
import torch

from digirl_dist.agent import Agent, contract
from digirl_dist.algorithm import UNSOLVED, StepOutcome
from digirl_dist.algorithm.advantages import returns_to_go
from digirl_dist.algorithm.optimizer import Fit, MinibatchOptimizer, OptimizerIsTheState
from digirl_dist.algorithm.selection import leading_on, unsolved
from digirl_dist.algorithm.totals import totals
from digirl_dist.parallel.peers import ALONE, Peers
from digirl_dist.settings import ActorSettings
from digirl_dist.trajectory import Observation, Trajectory
from digirl_dist.types import Json

_ROWS_AT_ONCE = 256
_LIKELIEST = -1e-6
"""Log-probability of an action to avoid beyond which the logarithm of what is left continues as a straight line."""


@dataclass(frozen=True, eq=False)
class Example:
    """An action worth repeating where it was taken; ``weight`` says how much. Below 0: one to avoid."""

    observation: Observation
    action: Json
    weight: float = 1.0


def worth_repeating(episode: Trajectory, weight: float, discount: float, erase_loops: bool) -> list[Example]:
    """The steps of an episode, each as heavy as ``weight`` times what came after it, discounted.

    Left out are those after which nothing good came and, with ``erase_loops``, those that led nowhere: a tap beside
    every button before the right one is not worth imitating.
    """
    worth = weight * np.array(returns_to_go([step.reward for step in episode.steps], discount))
    worth *= leading_on(episode, erase_loops)
    steps = zip(episode.steps, worth.tolist(), strict=True)
    return [Example(step.observation, step.action, heavy) for step, heavy in steps if heavy > 0]


def fatal(episodes: Sequence[Trajectory], most: int, weight: float) -> list[Example]:
    """The actions that ended the newest ``most`` failures among ``episodes``, to be avoided with this weight.

    What came after an action depends on those that followed it, but not of the last one: it earned nothing and left
    nothing to earn, whatever the policy.
    """
    ends = [one.steps[-1] for one in reversed(episodes) if one.steps and one.reward <= 0 and one.steps[-1].terminated]
    return [Example(step.observation, step.action, -weight) for step in ends[:most]]


def unsolved_steps(replay: Sequence[Trajectory], share: float, rows: Sequence[Example]) -> list[Example]:
    """What the oldest policy of the replay chose in tasks that are not solved yet, beside the ``rows`` to imitate.

    Whatever is imitated makes all else less likely, in every task. Those that are not solved need something else, so
    there the policy is held to what it chose before it learned. At most as many as ``rows``, evenly from all of those,
    and each ``share`` as heavy as these are on average.
    """
    steps = unsolved(replay) if share else []
    places = np.linspace(0, len(steps) - 1, min(len(steps), len(rows))).astype(int).tolist()
    weight = share * mean_weight(rows)
    return [Example(steps[place].observation, steps[place].action, weight) for place in places]


def weights_in(rows: Sequence[Example], episode: Trajectory, replay: Sequence[Trajectory]) -> list[float]:
    """What each step of an episode counts for among ``rows``, which hold the very observations of ``replay``."""
    own = next((each for each in replay if each.episode_id == episode.episode_id), episode)
    weights = {id(row.observation): row.weight for row in rows}
    return [weights.get(id(step.observation), 0.0) for step in own.steps]


def with_held(outcomes: Sequence[StepOutcome], weights: Sequence[float]) -> list[StepOutcome]:
    """The outcomes of an episode's steps, of which those are held to that have a weight as ``unsolved_steps``."""
    pairs = zip(outcomes, weights, strict=True)
    return [replace(one, kept=True, reason=UNSOLVED, weight=weight) if weight else one for one, weight in pairs]


def learned_of(fit: Fit, *kinds: Sequence[Example]) -> list[int]:
    """How many rows of each of the ``kinds``, which were fitted one after the other, were learned from."""
    ends = np.cumsum([len(rows) for rows in kinds]).tolist()
    return [sum(end - len(rows) <= place < end for place in fit.learned) for end, rows in zip(ends, kinds, strict=True)]


def mean_weight(rows: Sequence[Example]) -> float:
    """0 without rows."""
    return float(np.mean([row.weight for row in rows])) if rows else 0.0


def imitation_loss(log_probs: torch.Tensor, weights: torch.Tensor) -> torch.Tensor:
    """Weighted mean of −log π, and where a weight is below 0 of −log(1 − π); both arguments have shape [B].

    The latter is the unlikelihood of Welleck et al. 2019 (arXiv 1908.04319): it matters as far as the action is likely.
    """
    bounded = log_probs.clamp(max=_LIKELIEST)
    avoided = (-torch.expm1(bounded)).log() + (log_probs - bounded) / math.expm1(_LIKELIEST)
    return -(weights.abs() * torch.where(weights < 0, avoided, log_probs)).sum() / weights.abs().sum()


class Imitation(OptimizerIsTheState):
    """Raises the probability of examples, in shuffled minibatches; keeps its optimiser and random state.

    The agent fits in training mode, where it may regularise, and is left in evaluation mode.
    """

    def __init__(self, agent: Agent, settings: ActorSettings, seed: int, peers: Peers = ALONE) -> None:
        self._agent = agent
        self._peers = peers
        self._optimizer = MinibatchOptimizer(agent.parameters(), settings, seed, "the actor's loss", peers)

    def fit(self, rows: Sequence[Example]) -> Fit:
        """One iteration's minibatches; the loss is 0 without examples of any weight. Raises TrainingError."""
        places = [place for place, row in enumerate(rows) if row.weight]  # the others cost passes, and teach nothing
        self._agent.train()
        fit = self._optimizer.fit(
            len(places),
            loss_of=lambda batch: self._loss_of([rows[places[index]] for index in batch]),
            weight_of=lambda batch: sum(abs(rows[places[index]].weight) for index in batch),
        )
        self._agent.train(False)
        return fit._replace(learned=frozenset(places[index] for index in fit.learned))

    def measure(self, rows: Sequence[Example]) -> float:
        """The loss of all examples of all ranks together, without learning; 0 without examples of any weight.

        Every rank must call it.
        """
        rows, loss = [row for row in rows if row.weight], 0.0
        weight = sum(abs(row.weight) for row in rows)
        if rows:
            with torch.no_grad():
                log_probs = log_probs_in_parts(self._agent, rows).double()
                loss = float(imitation_loss(log_probs, _weights(rows, log_probs)))
        found = totals({"loss": weight * loss, "weight": weight}, self._peers)
        return found["loss"] / found["weight"] if found["weight"] else 0.0

    def _loss_of(self, rows: Sequence[Example]) -> torch.Tensor:
        log_probs = log_probs_of(self._agent, rows)
        return imitation_loss(log_probs, _weights(rows, log_probs))


def log_probs_in_parts(agent: Agent, rows: Sequence[Example]) -> torch.Tensor:
    """Of any number of rows, shape [N], a bounded number at once. Not empty."""
    parts = [rows[first : first + _ROWS_AT_ONCE] for first in range(0, len(rows), _ROWS_AT_ONCE)]
    return torch.cat([log_probs_of(agent, part) for part in parts])


def log_probs_of(agent: Agent, rows: Sequence[Example]) -> torch.Tensor:
    """Of the rows of a minibatch, shape [B]: one call of the agent."""
    return contract.log_prob(agent, [row.observation for row in rows], [row.action for row in rows])


def _weights(rows: Sequence[Example], like: torch.Tensor) -> torch.Tensor:
    return torch.tensor([row.weight for row in rows], dtype=like.dtype, device=like.device)
