"""Algorithms: the interface for learning, which turns trajectories into a better policy."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

from digirl_dist.agent import Agent
from digirl_dist.parallel.peers import Peers
from digirl_dist.tasks import Ticket
from digirl_dist.trajectory import Trajectory


class Algorithm(Protocol):
    """Updates the agent that it was built with, in place."""

    def update(self, fresh: Sequence[Trajectory], replay: Sequence[Trajectory]) -> dict[str, float]:
        """Trains for one iteration; returns figures for ``metrics.jsonl`` (losses, counts).

        ``fresh`` holds the trajectories of this iteration. ``replay`` holds the bounded history, oldest first, and ends
        with ``fresh``.
        """

    def state_dict(self) -> dict[str, Any]:
        """Returns optimisers, critics and random states, as tensors, numbers, strings, and lists and dicts of these."""

    def load_state_dict(self, state: Mapping[str, Any]) -> None: ...


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


LOOP = "it is part of a loop: what it led to was undone, or nothing changed"
"""Reason for leaving out a step that ``selection.on_the_way`` excludes."""
UNSOLVED = "its task is not solved yet: there the policy is held to what it chose before it learned"
"""Reason for keeping a step that ``imitation.unsolved_steps`` returns."""


class ExplainingAlgorithm(Protocol):
    """An optional method of an Algorithm for ``digirl-dist view`` and ``Run.explain``."""

    def explain(
        self,
        episode: Trajectory,
        fresh: Sequence[Trajectory],
        replay: Sequence[Trajectory],
        after: Mapping[str, Any],
    ) -> list[StepOutcome]:
        """Returns what the update with ``fresh`` and ``replay`` made of each step of one of the fresh episodes.

        Agent and algorithm are as they were before that update; ``after`` is the algorithm's ``state_dict`` after it.
        """


class ExpectingAlgorithm(Protocol):
    """An optional method of an Algorithm that waits until all episodes of a group have landed."""

    def expect(self, before: Sequence[Ticket], after: Sequence[Ticket]) -> None:
        """Called before each update of a host with the tickets that an earlier iteration left to run.

        ``before`` are those that this iteration took over, ``after`` those that it leaves to the next. Any other ticket
        of an iteration that has ended will not bring an episode any more.
        """


AlgorithmFactory = Callable[[Agent, Peers], Algorithm]
"""Builds the algorithm for an agent that learns alone or with peers; called in every process that learns."""
