"""The loop of one rank: collects, learns with the other ranks, and brings rank 0 what the run folder keeps.

``docs/dev/design.md`` says why this is not the loop of ``host.py``.
"""

from __future__ import annotations

import json
import time
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

import torch

from digirl_dist.algorithm.contract import state_of
from digirl_dist.parallel.group import Group
from digirl_dist.parallel.statistics import EpisodeWindow
from digirl_dist.train.data_selector import DataSelector
from digirl_dist.train.learner import RankLearner
from digirl_dist.train.parquet_bytes import assign_indices, merge_ranks, to_parquet_bytes
from digirl_dist.train.random_states import random_states
from digirl_dist.train.streams import Collected, Streams
from digirl_dist.trajectory import Trajectory
from digirl_dist.types import Json


@dataclass(frozen=True)
class IterationReport:
    """One iteration of all ranks; on other ranks than 0, ``episodes`` and ``states`` are empty."""

    iteration: int
    figures: dict[str, float]
    episodes: Sequence[Trajectory]
    """The whole episodes that ended on any rank, in the order of their tickets."""
    states: Sequence[Json]
    """What each rank needs to resume after this iteration, in the order of ranks."""


class Reporter(Protocol):
    """Receives the report of each iteration: rank 0 evaluates, saves and prints; the others do nothing."""

    def report(self, report: IterationReport) -> None:
        """Returns when the iteration is durable."""


class NullReporter:
    """Reporter of every rank but the first."""

    def report(self, report: IterationReport) -> None:
        """Does nothing: rank 0 has the whole report."""


@dataclass(frozen=True)
class RankLoop:
    """Everything that one rank trains with."""

    group: Group
    learner: RankLearner
    streams: Streams
    selector: DataSelector
    window: EpisodeWindow
    reporter: Reporter
    steps: int
    """Of each emulator in one iteration."""

    def train(self, first: int, iterations: int) -> None:
        """Trains from iteration ``first`` until ``iterations`` updates have been made. Every rank must call it."""
        for iteration in range(first, iterations):
            started_at = time.monotonic()
            collected = self._collect(iteration)
            collected_at = time.monotonic()
            self.group.gate(f"the update of iteration {iteration}")
            figures = self.learner.update(iteration, self.selector.select(collected))
            learned_at = time.monotonic()
            figures |= self._averages(collected.episodes)
            figures |= {
                "collect_s": round(collected_at - started_at, 4),
                "update_s": round(learned_at - collected_at, 4),
            }
            self.reporter.report(self._gathered(iteration, figures, collected.episodes))

    def _collect(self, iteration: int) -> Collected:
        with torch.inference_mode():
            collected = self.streams.collect(self.learner.agent, iteration, self.steps)
        collected.episodes = assign_indices(collected.episodes, self.group.rank)
        return collected

    def _averages(self, episodes: Sequence[Trajectory]) -> dict[str, float]:
        for episode in episodes:
            self.window.add(episode.reward, len(episode.steps))
        return self.window.averages(self.group)

    def _gathered(self, iteration: int, figures: dict[str, float], episodes: Sequence[Trajectory]) -> IterationReport:
        random = random_states(state_of(self.learner.algorithm))
        state = {"streams": self.streams.state(), "window": self.window.state(), "random": random}
        everyones = merge_ranks(self.group.gather(to_parquet_bytes(episodes)))
        states = [json.loads(part) for part in self.group.gather(json.dumps(state).encode())]
        return IterationReport(iteration, figures, everyones, states)
