"""The seam for learning: how the host turns trajectories into a better policy."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, Protocol

from digirl_dist.agent import Agent
from digirl_dist.parallel.peers import Peers
from digirl_dist.trajectory import Trajectory


class Algorithm(Protocol):
    """Updates the agent that it was built with, in place."""

    def update(self, fresh: Sequence[Trajectory], replay: Sequence[Trajectory]) -> dict[str, float]:
        """One iteration's training; returns figures for ``metrics.jsonl`` (losses, counts).

        ``fresh`` holds the trajectories of this iteration, ``replay`` the bounded history, oldest first, which
        ends with ``fresh``.
        """

    def state_dict(self) -> dict[str, Any]:
        """Optimisers, critics and random states: tensors, numbers, strings, lists and dicts of these only."""

    def load_state_dict(self, state: Mapping[str, Any]) -> None: ...


AlgorithmFactory = Callable[[Agent, Peers], Algorithm]
"""Builds the algorithm for an agent that learns alone or with peers; called in every process that learns."""
