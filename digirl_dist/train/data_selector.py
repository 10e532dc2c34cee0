"""Selects what an algorithm learns from: fragments, whole episodes with a replay, or complete groups."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass, replace
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
    """Selects whole episodes, and the newest ``capacity`` of all iterations: for algorithms that judge outcomes."""

    def __init__(self, remembered: Sequence[Trajectory], capacity: int) -> None:
        self._replay = list(remembered)
        self._capacity = capacity

    def select(self, collected: Collected) -> UpdateData:
        self._replay = [*self._replay, *collected.episodes][-self._capacity :]
        return UpdateData(collected.episodes, self._replay)


class CompleteGroups:
    """Selects groups of ``size`` whole episodes: for algorithms that compare episodes of one start.

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
