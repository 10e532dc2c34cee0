"""Selects what an algorithm learns from: fragments, or whole episodes with a replay."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

from digirl_dist.train.streams import Collected
from digirl_dist.trajectory import Trajectory


@dataclass(frozen=True)
class UpdateData:
    """The arguments of ``Algorithm.update`` in one iteration."""

    fresh: Sequence[Trajectory]
    replay: Sequence[Trajectory]


class DataSelector(Protocol):
    """Selects the part of what this rank collected that its algorithm learns from."""

    def select(self, collected: Collected) -> UpdateData:
        """Returns the data of one update. Must be called once per iteration, since it may remember."""


class NewestFragments:
    """Selects every step of this iteration: for algorithms that learn from what the newest policy did."""

    def select(self, collected: Collected) -> UpdateData:
        return UpdateData(collected.fragments, collected.fragments)


class EpisodeReplay:
    """Selects whole episodes, and the newest ``capacity`` of all iterations: for algorithms that judge outcomes.

    A group of episodes that start alike may take several iterations; its first ones wait in the replay.
    """

    def __init__(self, remembered: Sequence[Trajectory], capacity: int) -> None:
        self._replay = list(remembered)
        self._capacity = capacity

    def select(self, collected: Collected) -> UpdateData:
        self._replay = [*self._replay, *collected.episodes][-self._capacity :]
        return UpdateData(collected.episodes[-self._capacity :], self._replay)
