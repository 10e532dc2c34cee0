"""How a rank's episodes travel, are found again on resuming, and are selected for an update."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import numpy as np

from digirl_dist.collection import CollectionResult
from digirl_dist.parallel.rank import Rank
from digirl_dist.storage.trajectory_store import Store, newest_of_each_rank, of_rank
from digirl_dist.tasks import Task, Ticket
from digirl_dist.train.loop import EpisodeReplay, assign_indices, from_parquet_bytes, merge_ranks, to_parquet_bytes
from digirl_dist.trajectory import Observation, Step, Trajectory


def episode(name: str, iteration: int = 0, seed: int = 0) -> Trajectory:
    seen = Observation(vector=np.zeros(2, np.float32))
    step = Step(seen, 1, -0.7, 1.0, True, False)
    return Trajectory(Ticket(iteration, 0, Task("t"), seed, iteration), name, "w", 0, [step], seen, True)


def names(episodes: Sequence[Trajectory]) -> list[str]:
    return [each.episode_id for each in episodes]


def test_a_rank_finds_its_own_episodes_again_however_many_each_rank_had() -> None:
    first = assign_indices([episode(f"a{k}") for k in range(3)], Rank(0, 2, 0, 2))
    second = assign_indices([episode("b0")], Rank(1, 2, 1, 2))
    together = merge_ranks([to_parquet_bytes(first), to_parquet_bytes(second)])
    assert names(together) == ["a0", "b0", "a1", "a2"]
    back = from_parquet_bytes(to_parquet_bytes(together))
    assert [each.ticket.index for each in back] == [0, 1, 2, 4]
    assert names(of_rank(back, Rank(1, 2, 1, 2))) == ["b0"]
    assert from_parquet_bytes(to_parquet_bytes([])) == []


def test_the_first_episodes_of_a_group_wait_in_the_replay_for_the_others() -> None:
    waiting = EpisodeReplay([episode("a0", 0, seed=1), episode("b0", 0, seed=2)], capacity=3)
    fresh, replay = waiting.with_fresh([episode("a1", 1, seed=1), episode("c0", 1, seed=3)])
    assert names(fresh) == ["a1", "c0"] and names(replay) == ["b0", "a1", "c0"]


def test_the_replay_ends_with_what_is_new_also_where_that_is_more_than_it_keeps() -> None:
    fresh, replay = EpisodeReplay([], capacity=2).with_fresh([episode(name) for name in "abc"])
    assert names(fresh) == names(replay) == ["b", "c"]


def test_each_rank_finds_its_newest_episodes_across_iterations_without_any(tmp_path: Path) -> None:
    store = Store(tmp_path)
    for iteration, ended in ((0, "abc"), (3, "d")):
        busy = assign_indices([episode(name, iteration) for name in ended], Rank(0, 2))
        idle = assign_indices([episode(f"{iteration}", iteration)], Rank(1, 2))
        store.append(CollectionResult(iteration, [*busy, *idle]))
    found = newest_of_each_rank(store, before=5, capacity=2, world_size=2)
    assert names(of_rank(found, Rank(0, 2))) == ["c", "d"]
    assert names(of_rank(found, Rank(1, 2))) == ["0", "3"]
    assert newest_of_each_rank(store, before=5, capacity=0, world_size=2) == []
