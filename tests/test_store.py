"""An episode that landed is safe, and counts once."""

from __future__ import annotations

import time
from pathlib import Path

from digirl_dist import table
from digirl_dist.harvest import Harvest
from digirl_dist.store import Store
from digirl_dist.tasks import Task, Ticket
from digirl_dist.trajectory import Observation, Step, Trajectory


def episode(iteration: int, index: int) -> Trajectory:
    ticket = Ticket(iteration, index, Task("t"), seed=index, policy_version=iteration)
    step = Step(Observation("x"), 1, 0.0, 1.0, True, False)
    return Trajectory(ticket, f"{iteration}-{index}", "w", 0, [step], Observation("y"), True)


def harvest(iteration: int, count: int = 2) -> Harvest:
    return Harvest(iteration, [episode(iteration, index) for index in range(count)])


def test_an_episode_lands_once(tmp_path: Path) -> None:
    store = Store(tmp_path)
    assert store.land(episode(0, 1))
    assert not store.land(episode(0, 1))
    assert list(Store(tmp_path).landed(0)) == [1]


def test_a_pulled_file_is_moved_to_where_it_lands(tmp_path: Path) -> None:
    store = Store(tmp_path)
    incoming = store.incoming(0, "w-3")
    table.write(incoming, [episode(0, 3)])
    assert store.land(episode(0, 3), incoming) and not incoming.exists()
    assert list(store.landed(0)) == [3]


def test_a_file_that_is_still_incoming_has_not_landed(tmp_path: Path) -> None:
    store = Store(tmp_path)
    table.write(store.incoming(0, "w-3"), [episode(0, 3)])
    assert store.landed(0) == {}


def test_a_finished_iteration_counts_as_landed_and_takes_nothing_more(tmp_path: Path) -> None:
    store = Store(tmp_path)
    store.land(episode(0, 0))
    done = harvest(0)
    store.append(done)
    assert done.stored_at is not None and done.stored_at <= time.monotonic()
    assert not (tmp_path / ".landing" / "000000").exists()
    assert sorted(Store(tmp_path).landed(0)) == [0, 1]
    assert not store.land(episode(0, 0))


def test_appending_twice_changes_nothing(tmp_path: Path) -> None:
    store = Store(tmp_path)
    store.append(harvest(0))
    before = (tmp_path / "000000.parquet").stat().st_mtime_ns
    store.append(harvest(0))
    assert (tmp_path / "000000.parquet").stat().st_mtime_ns == before


def test_replay_is_the_newest_episodes_oldest_first_also_after_a_restart(tmp_path: Path) -> None:
    store = Store(tmp_path)
    for iteration in range(3):
        store.append(harvest(iteration))
    for reader in (store, Store(tmp_path)):
        keys = [trajectory.ticket.key for trajectory in reader.replay(until=2, capacity=3)]
        assert keys == [(1, 1), (2, 0), (2, 1)]
