"""The loop of one rank: collects, learns with the other ranks, and brings rank 0 what the run folder keeps.

``docs/dev/design.md`` says why this is not the loop of ``host.py``.
"""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

import msgspec
import pyarrow as pa
import torch

from digirl_dist.agent import Agent, contract
from digirl_dist.algorithm import Algorithm
from digirl_dist.algorithm.contract import learned_of
from digirl_dist.errors import TrainingError
from digirl_dist.parallel.group import Group
from digirl_dist.parallel.rank import Rank
from digirl_dist.storage import parquet, update_table
from digirl_dist.train.streams import Collected, Streams
from digirl_dist.trainer.one_update import check_replicas, naming_too_little_memory, refuse_broken, seeded
from digirl_dist.trajectory import Trajectory
from digirl_dist.user_code.blame import blaming

_WINDOW = 100


@dataclass(frozen=True)
class IterationReport:
    """One iteration of all ranks; on other ranks than 0, ``episodes`` is empty."""

    iteration: int
    figures: dict[str, float]
    episodes: Sequence[Trajectory]
    """The whole episodes that ended on any rank, in the order of their tickets."""
    table: pa.Table | None = None
    """That of the update, with the rows of all ranks; None if the algorithm returns none, or learned from pieces."""


@dataclass(frozen=True)
class RankLearner:
    """The policy of this rank and its algorithm. Weights are the same on every rank after every update."""

    group: Group
    agent: Agent
    algorithm: Algorithm
    seed: int
    """Of what the agent draws while it learns; ranks differ."""

    def update(
        self, iteration: int, fresh: Sequence[Trajectory], replay: Sequence[Trajectory]
    ) -> tuple[dict[str, float], pa.Table | None]:
        """Makes one update from the data of all ranks; returns the algorithm's figures, and this rank's table if any.

        Makes none, and returns no figures, if no rank has anything new; a rank without data contributes empty
        minibatches.
        Every rank must call it. Raises PeerError when a rank does not take part or ends with other weights, and
        TrainingError for weights that are no numbers.
        """
        if self.group.largest(len(fresh)) == 0:
            return {}, None
        update = f"{type(self.algorithm).__name__}.update"
        with seeded(self.seed, iteration), blaming(update, TrainingError), naming_too_little_memory():
            learned = learned_of(self.algorithm, self.algorithm.update(fresh, replay))
        self.agent.train(False)  # it acts next, and an algorithm of the user's may have left it in training mode
        weights = contract.state_of(self.agent)
        check_replicas(self.group, weights)
        refuse_broken(weights)
        return learned


class EpisodeReplay:
    """The newest ``capacity`` whole episodes of all iterations: for algorithms that judge outcomes.

    A group of episodes that start alike may take several iterations; its first ones wait here.
    """

    def __init__(self, remembered: Sequence[Trajectory], capacity: int) -> None:
        self._episodes = list(remembered)
        self._capacity = capacity

    def with_fresh(self, episodes: Sequence[Trajectory]) -> tuple[Sequence[Trajectory], Sequence[Trajectory]]:
        """Adds the episodes of an iteration; returns those of them that it keeps, and all that it has."""
        self._episodes = [*self._episodes, *episodes][-self._capacity :]
        return episodes[-self._capacity :], self._episodes


class EpisodeWindow:
    """Keeps return and length of this rank's newest 100 episodes, and averages them over all ranks."""

    def __init__(self) -> None:
        self._episodes: deque[tuple[float, int]] = deque(maxlen=_WINDOW)

    def add(self, reward: float, length: int) -> None:
        """Adds an episode: its undiscounted return, and its length in steps."""
        self._episodes.append((reward, length))

    def averages(self, group: Group) -> dict[str, float]:
        """Returns means over the windows of all ranks, nothing while they are empty. Every rank must call it."""
        rewards = sum(reward for reward, _ in self._episodes)
        lengths = sum(length for _, length in self._episodes)
        sums = group.sum(torch.tensor([rewards, lengths, len(self._episodes)], dtype=torch.float64)).tolist()
        if not sums[2]:
            return {}
        return {"episode_reward_avg_100": sums[0] / sums[2], "episode_length_avg_100": sums[1] / sums[2]}


@dataclass(frozen=True)
class RankLoop:
    """Everything that one rank trains with."""

    learner: RankLearner
    streams: Streams
    replay: EpisodeReplay | None
    """None for algorithms that learn from every step of the newest iteration."""
    window: EpisodeWindow
    report: Callable[[IterationReport], None] | None
    """Evaluates, saves and prints on rank 0; returns when the iteration is durable. None on the others."""
    steps: int
    """Of each emulator in one iteration."""

    def train(self, first: int, iterations: int) -> None:
        """Trains from iteration ``first`` until ``iterations`` updates have been made. Every rank must call it."""
        group = self.learner.group
        for iteration in range(first, iterations):
            started_at = time.monotonic()
            collected = self._collect(iteration)
            collected_at = time.monotonic()
            group.gate(f"the update of iteration {iteration}")
            if self.replay is None:
                figures, _ = self.learner.update(iteration, collected.fragments, collected.fragments)
                table = None  # pieces of episodes have no tickets to be named by
            else:
                figures, table = self.learner.update(iteration, *self.replay.with_fresh(collected.episodes))
            learned_at = time.monotonic()
            figures |= self._averages(collected.episodes)
            figures |= {
                "collect_s": round(collected_at - started_at, 4),
                "update_s": round(learned_at - collected_at, 4),
            }
            report = self._gathered(iteration, figures, collected.episodes, table)
            if self.report is not None:
                self.report(report)

    def _collect(self, iteration: int) -> Collected:
        with torch.inference_mode():
            collected = self.streams.collect(self.learner.agent, iteration, self.steps)
        collected.episodes = assign_indices(collected.episodes, self.learner.group.rank)
        return collected

    def _averages(self, episodes: Sequence[Trajectory]) -> dict[str, float]:
        for episode in episodes:
            self.window.add(episode.reward, len(episode.steps))
        return self.window.averages(self.learner.group)

    def _gathered(
        self, iteration: int, figures: dict[str, float], episodes: Sequence[Trajectory], table: pa.Table | None
    ) -> IterationReport:
        own = to_parquet_bytes(episodes), b"" if table is None else update_table.to_bytes(table)
        gathered = self.learner.group.gather(msgspec.msgpack.encode(own))
        parts = [msgspec.msgpack.decode(part, type=tuple[bytes, bytes]) for part in gathered]
        everyones = merge_ranks([brought for brought, _ in parts])
        return IterationReport(iteration, figures, everyones, update_table.merged([rows for _, rows in parts]))


def assign_indices(trajectories: Sequence[Trajectory], rank: Rank) -> list[Trajectory]:
    """Returns one iteration's trajectories with ticket indices that no other rank uses: r, r + W, … on rank r of W."""
    indices = range(rank.rank, rank.rank + len(trajectories) * rank.world_size, rank.world_size)
    pairs = zip(trajectories, indices, strict=True)
    return [replace(each, ticket=replace(each.ticket, index=index)) for each, index in pairs]


def to_parquet_bytes(trajectories: Sequence[Trajectory]) -> bytes:
    """Returns the content of a Parquet file, empty for no trajectories. Their tickets must differ."""
    if not trajectories:
        return b""
    sink = pa.BufferOutputStream()
    parquet.write_to(sink, trajectories)
    return bytes(sink.getvalue())


def from_parquet_bytes(data: bytes) -> list[Trajectory]:
    """Inverts ``to_parquet_bytes``; nothing is unpickled. Raises TrajectoryError for anything else."""
    return parquet.read(pa.BufferReader(data)) if data else []


def merge_ranks(parts: Sequence[bytes]) -> list[Trajectory]:
    """Returns the trajectories of all ranks, in the order of their tickets."""
    return sorted((each for part in parts for each in from_parquet_bytes(part)), key=lambda each: each.ticket.key)
