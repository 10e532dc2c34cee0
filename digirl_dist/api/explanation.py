"""Why a policy acted as it did, computed from its checkpoint, and what an update made of it, read from its table."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from digirl_dist.agent import ActionProbabilities
from digirl_dist.errors import DigirlDistError
from digirl_dist.storage import update_table
from digirl_dist.storage.checkpoint import Checkpoints
from digirl_dist.trajectory import Trajectory, seen_at
from digirl_dist.types import Json

if TYPE_CHECKING:
    from digirl_dist.api.policy import Policy
    from digirl_dist.api.run import Run


@dataclass(frozen=True)
class StepOutcome:
    """What an update made of one step."""

    kept: bool
    """Whether the update learned from the step."""
    reason: str
    """The reason, in words."""
    weight: float = 0.0
    """The step's weight in the policy's loss."""
    value: float | None = None
    """A value function's estimate before the step."""
    advantage: float | None = None
    """How much better the step was than expected."""


@dataclass(frozen=True)
class Explanation:
    """What is known about an episode's steps besides the record; ``no_…`` says why something is unknown."""

    version: int
    """The policy to which the probabilities belong."""
    probabilities: Sequence[ActionProbabilities]
    log_probs: Sequence[float]
    """Log-probabilities of the recorded actions under that policy."""
    no_probabilities: str
    outcomes: Sequence[StepOutcome]
    no_outcomes: str


def explain(run: Run, episode: Trajectory, version: int | None) -> Explanation:
    """Returns what can be found out, with the reason for the rest, such as a removed checkpoint."""
    version = episode.ticket.policy_version if version is None else version
    probabilities: list[ActionProbabilities] = []
    log_probs: list[float] = []
    outcomes: list[StepOutcome] = []
    no_probabilities = no_outcomes = ""
    try:
        policy = run.policy(version)
        log_probs = _log_probs(policy, episode)
        probabilities = policy.probabilities([step.observation for step in episode.steps])
    except DigirlDistError as error:
        no_probabilities = str(error)
    try:
        outcomes, no_outcomes = _outcomes(run, episode)
    except DigirlDistError as error:
        no_outcomes = str(error)
    return Explanation(version, probabilities, log_probs, no_probabilities, outcomes, no_outcomes)


def _log_probs(policy: Policy, episode: Trajectory) -> list[float]:
    import torch

    with torch.no_grad():
        seen = [seen_at(episode, place) for place in range(len(episode.steps))]
        found = policy.agent.log_prob(seen, [step.action for step in episode.steps])
        values: list[float] = found.tolist()
    return values


def _outcomes(run: Run, episode: Trajectory) -> tuple[list[StepOutcome], str]:
    """Returns the outcomes, or why there are none. Raises TrajectoryError for a table that cannot be read."""
    iteration = episode.ticket.iteration
    if episode.ticket.purpose != "train":
        return [], "nothing is learned from an evaluation"
    table = Checkpoints(run.folder / "checkpoints").table(iteration + 1)
    if not table.exists():
        return [], f"update {iteration} left no table: it has not been made yet, or its algorithm returns none"
    rows = update_table.of_episode(table, iteration, episode.ticket.index)
    if not rows:
        return [], "the update did not see it: its policy was too old, or the episode counts in another iteration"
    task = episode.ticket.task.id
    met = sorted({row["task"] for row in rows if row["task"] != task and row["learned"]})
    also = f"; the way to {', '.join(met)}, which it met, was learned under that instruction" if met else ""
    own = [row for row in rows if row["task"] == task]
    return [_outcome([row for row in own if row["step"] == step], also) for step in range(len(episode.steps))], ""


def _outcome(rows: Sequence[Mapping[str, Json]], also: str) -> StepOutcome:
    """Returns what became of a step with these rows: the first that was learned from tells."""
    if not rows:
        return StepOutcome(False, f"the update did not look at it{also}")
    row = next((row for row in rows if row["learned"]), rows[0])
    kept = bool(row["learned"])
    undrawn = "; there was no room for it (max_examples)" if row["weight"] and not kept else ""
    reason = row["reason"] + undrawn + ("" if kept else also)
    return StepOutcome(kept, reason, row["weight"], row["value"], row["advantage"])
