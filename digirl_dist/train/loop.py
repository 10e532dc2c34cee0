"""The loop of one rank: collect, learn with the others, bring what is worth keeping to rank 0."""

from __future__ import annotations

import json
import time
from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Protocol

import torch

from digirl_dist.agent import Agent
from digirl_dist.algorithm import Algorithm
from digirl_dist.parallel.group import Group
from digirl_dist.parallel.statistics import EpisodeWindow
from digirl_dist.storage.checkpoint import describe
from digirl_dist.storage.digest import digest
from digirl_dist.train.parquet_bytes import numbered, to_parquet_bytes
from digirl_dist.train.streams import Collected, Streams
from digirl_dist.trainer.seeding import seeded
from digirl_dist.trajectory import Trajectory
from digirl_dist.types import Json


@dataclass(frozen=True)
class UpdateData:
    """What an algorithm is to learn from in one iteration."""

    fresh: Sequence[Trajectory]
    replay: Sequence[Trajectory]


class DataSelector(Protocol):
    """Which part of what was collected an algorithm learns from."""

    def select(self, collected: Collected) -> UpdateData: ...


class Pieces:
    """Every step of this iteration: for algorithms that learn from what the newest policy did."""

    def select(self, collected: Collected) -> UpdateData:
        return UpdateData(collected.pieces, collected.pieces)


class Episodes:
    """Whole episodes, and the newest of earlier iterations: for algorithms that judge outcomes."""

    def __init__(self, remembered: Sequence[Trajectory], capacity: int) -> None:
        self._replay = list(remembered)
        self._capacity = capacity

    def select(self, collected: Collected) -> UpdateData:
        self._replay = [*self._replay, *collected.episodes][-self._capacity :]
        return UpdateData(collected.episodes, self._replay)


class Groups:
    """Whole episodes once all of their group are there: for algorithms that compare episodes of one start.

    A group that took several iterations belongs to the one in which it was completed.
    """

    def __init__(self, remembered: Sequence[Trajectory], size: int) -> None:
        self._size = size
        self._waiting: dict[tuple[str, int], list[Trajectory]] = defaultdict(list)
        self._completed(remembered)

    def select(self, collected: Collected) -> UpdateData:
        fresh = self._completed(collected.episodes)
        return UpdateData(fresh, fresh)

    def _completed(self, episodes: Sequence[Trajectory]) -> list[Trajectory]:
        for episode in episodes:
            self._waiting[episode.ticket.task.id, episode.ticket.seed].append(episode)
        complete = [start for start, group in self._waiting.items() if len(group) == self._size]
        return [episode for start in complete for episode in _of_one_iteration(self._waiting.pop(start))]


def _of_one_iteration(group: Sequence[Trajectory]) -> list[Trajectory]:
    newest = group[-1].ticket.iteration
    return [replace(episode, ticket=replace(episode.ticket, iteration=newest)) for episode in group]


@dataclass(frozen=True)
class Iteration:
    """One iteration as rank 0 gets to know it; a parcel from each rank."""

    number: int
    figures: dict[str, float]
    episodes: Sequence[bytes]
    states: Sequence[Json]


class Reporter(Protocol):
    """What becomes of an iteration: rank 0 measures, saves and tells; the others do nothing."""

    def iteration(self, iteration: Iteration) -> None: ...


class NullReporter:
    """Of every rank but the first."""

    def iteration(self, iteration: Iteration) -> None:
        """Rank 0 has it all."""


@dataclass
class RankLoop:
    """Everything that one rank trains with."""

    group: Group
    agent: Agent
    algorithm: Algorithm
    streams: Streams
    selector: DataSelector
    window: EpisodeWindow
    reporter: Reporter
    steps: int
    seed: int
    """Of what an agent draws while it learns."""

    def train(self, first: int, iterations: int) -> None:
        """From iteration ``first`` until ``iterations`` updates have been made."""
        for number in range(first, iterations):
            started = time.monotonic()
            with torch.inference_mode():
                collected = self.streams.collect(self.agent, number, self.steps)
            collected.episodes = numbered(collected.episodes, self.group.rank)
            collected_at = time.monotonic()
            self.group.gate(f"the update of iteration {number}")
            figures = self._learn(number, collected)
            learned_at = time.monotonic()
            figures |= self._averages(collected)
            figures |= {"collect_s": collected_at - started, "update_s": learned_at - collected_at}
            self.reporter.iteration(self._brought_together(number, figures, collected))

    def _learn(self, number: int, collected: Collected) -> dict[str, float]:
        """No update while no rank has anything to learn from; one that has nothing gives empty minibatches."""
        data = self.selector.select(collected)
        if self.group.largest(len(data.replay)) == 0:
            return {}
        with seeded(self.seed, number):
            figures = self.algorithm.update(data.fresh, data.replay)
        tensors = describe({name: tensor.cpu() for name, tensor in self.agent.state_dict().items()})
        self.group.check_in_step(digest(repr(sorted(tensors.items())).encode()))
        return figures

    def _averages(self, collected: Collected) -> dict[str, float]:
        for episode in collected.episodes:
            self.window.add(episode.reward, len(episode.steps))
        return self.window.averages(self.group)

    def _brought_together(self, number: int, figures: dict[str, float], collected: Collected) -> Iteration:
        state = {"streams": self.streams.state(), "window": self.window.state()}
        episodes = self.group.to_first(to_parquet_bytes(collected.episodes))
        states = [json.loads(part) for part in self.group.to_first(json.dumps(state).encode())]
        return Iteration(number, figures, episodes, states)
