"""Algorithms: the interface for learning, which turns trajectories into a better policy."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, Protocol

from digirl_dist.agent import Agent
from digirl_dist.algorithm.table import Learned
from digirl_dist.parallel.peers import Peers
from digirl_dist.tasks import Ticket
from digirl_dist.trajectory import Trajectory


class Algorithm(Protocol):
    """Updates the agent that it was built with, in place."""

    def update(self, fresh: Sequence[Trajectory], replay: Sequence[Trajectory]) -> Learned | Mapping[str, float]:
        """Trains for one iteration; returns figures for ``metrics.jsonl`` (losses, counts), alone or with a table.

        ``fresh`` holds the trajectories of this iteration. ``replay`` holds the bounded history, oldest first, and ends
        with ``fresh``. The table says what became of each step (``Run.explain``, ``digirl-dist view``).
        """

    def state_dict(self) -> dict[str, Any]:
        """Returns optimisers, critics and random states, as tensors, numbers, strings, and lists and dicts of these."""

    def load_state_dict(self, state: Mapping[str, Any]) -> None: ...


class ExpectingAlgorithm(Protocol):
    """An optional method of an Algorithm that waits until all episodes of a group have landed."""

    def expect(self, before: Sequence[Ticket], after: Sequence[Ticket]) -> None:
        """Called before each update of a host with the tickets that an earlier iteration left to run.

        ``before`` are those that this iteration took over, ``after`` those that it leaves to the next. Any other ticket
        of an iteration that has ended will not bring an episode any more.
        """


AlgorithmFactory = Callable[[Agent, Peers], Algorithm]
"""Builds the algorithm for an agent that learns alone or with peers; called in every process that learns."""
