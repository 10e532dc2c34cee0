"""An episode that landed is safe, and counts once."""

from __future__ import annotations

import gc
import time
import weakref
from dataclasses import replace
from pathlib import Path

import pytest

from digirl_dist.collection import CollectionResult
from digirl_dist.errors import TrajectoryError
from digirl_dist.storage import atomic_files, episode_file, parquet
from digirl_dist.storage.run_folder import FOLDERS
from digirl_dist.storage.trajectory_store import Store
from digirl_dist.tasks import Key, Round, Task, Ticket
from digirl_dist.trajectory import Observation, Step, Trajectory


def episode(iteration: int, index: int) -> Trajectory:
    ticket = Ticket(iteration, index, Task("t"), seed=index, policy_version=iteration)
    step = Step(Observation("x"), 1, 0.0, 1.0, True, False)
    return Trajectory(ticket, f"{iteration}-{index}", "w", 0, [step], Observation("y"), True)


def result(iteration: int, count: int = 2) -> CollectionResult:
    return CollectionResult(iteration, [episode(iteration, index) for index in range(count)])


def test_an_episode_lands_once(tmp_path: Path) -> None:
    store = Store(tmp_path)
    assert store.land(Round(0), episode(0, 1))
    assert not store.land(Round(0), episode(0, 1))
    assert list(Store(tmp_path).landed(Round(0))) == [Key(0, 1)]


def test_a_pulled_file_is_moved_to_where_it_lands(tmp_path: Path) -> None:
    store = Store(tmp_path)
    incoming = store.incoming(Round(0), "w-3")
    episode_file.write(incoming, episode(0, 3))
    assert store.land(Round(0), episode(0, 3), incoming) and not incoming.exists()
    assert list(store.landed(Round(0))) == [Key(0, 3)]


@pytest.mark.parametrize(
    ("wanted", "file", "remedy"),
    [
        (Round(0), "000000.parquet", "restore it, or start another run"),
        (Round(0), ".landing/000000/000000-00003.episode", "remove it, and its episode runs again"),
        (Round(0, "evaluate"), "../evaluation/000000/training.parquet", "remove it, and its episodes run again"),
    ],
)
def test_a_damaged_file_is_named_with_what_can_be_done(tmp_path: Path, wanted: Round, file: str, remedy: str) -> None:
    path = tmp_path / "trajectories" / file
    (tmp_path / "trajectories").mkdir()
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(b"PAR1 torn")
    with pytest.raises(TrajectoryError, match=f"{path.name} is not a trajectory file: .*; {remedy}$"):
        Store(tmp_path / "trajectories").landed(wanted)


@pytest.mark.parametrize("wanted", [Round(0), Round(4, "evaluate"), Round(1, "measure", 4)])
def test_what_lands_lies_in_a_folder_whose_links_are_looked_at(tmp_path: Path, wanted: Round) -> None:
    Store(tmp_path / "trajectories").land(wanted, episode(0, 1))
    (landed,) = tmp_path.glob(f"trajectories/.landing/**/*{episode_file.SUFFIX}")
    assert str(landed.parent.parent.relative_to(tmp_path)) in FOLDERS


def test_a_file_that_is_still_incoming_has_not_landed(tmp_path: Path) -> None:
    store = Store(tmp_path)
    episode_file.write(store.incoming(Round(0), "w-3"), episode(0, 3))
    assert store.landed(Round(0)) == {}


def test_only_the_host_that_holds_the_folder_sweeps_what_is_incoming(tmp_path: Path) -> None:
    host = Store(tmp_path)
    incoming = host.incoming(Round(0), "w-3")
    episode_file.write(incoming, episode(0, 3))
    reader = Store(tmp_path)
    assert reader.landed(Round(0)) == {} and host.land(Round(0), episode(0, 3), incoming)
    killed = host.incoming(Round(0), "w-4")
    killed.write_bytes(b"rows")
    Store(tmp_path).sweep()
    assert not killed.exists() and list(Store(tmp_path).landed(Round(0))) == [Key(0, 3)]


@pytest.mark.parametrize("over", [Round(0), Round(4, "evaluate"), Round(1, "measure", 4)])
def test_what_a_host_left_that_was_killed_as_a_round_ended_is_swept(tmp_path: Path, over: Round) -> None:
    root = tmp_path / "trajectories"
    killed, under_way = Store(root), over._replace(number=over.number + 2)
    for wanted in (over, under_way):
        killed.land(wanted, episode(wanted.number, 0))
    whole = killed._file(over)
    whole.parent.mkdir(parents=True, exist_ok=True)
    with atomic_files.appearing(whole) as part:
        parquet.write(part, [episode(over.number, 0)])
        left = part.with_name(part.name.replace(".part", "")[:-16] + "0" * 16 + ".part")
        left.write_bytes(part.read_bytes())
    Store(root).sweep()
    assert [*Store(root)._landing_rounds()] == [under_way] and killed.has(over)
    assert Store(root).unfinished() == ([under_way.number] if over.purpose == "train" else [])
    assert over.purpose == "train" or not left.exists(), "parts among the trajectories go with the lock of the folder"


def test_a_round_that_is_opened_again_keeps_its_episodes_and_takes_more(tmp_path: Path) -> None:
    store, wanted = Store(tmp_path / "trajectories"), Round(0, "measure", 4)
    first, second = (
        replace(one, ticket=replace(one.ticket, iteration=0, policy_version=4, purpose="measure"))
        for one in (episode(4, 0), episode(4, 1))
    )
    store.append(CollectionResult(0, [first], purpose="measure", measured=4))
    assert not store.land(wanted, second)
    store.reopen(wanted)
    assert store.land(wanted, second)
    for later in (store, Store(tmp_path / "trajectories")):
        later.sweep()
        assert [*later.landed(wanted)] == [first.ticket.key, second.ticket.key]


def test_to_open_a_store_makes_no_folder(tmp_path: Path) -> None:
    assert not Store(tmp_path / "run").has(Round(0)) and not (tmp_path / "run").exists()


def test_a_finished_iteration_counts_as_landed_and_takes_nothing_more(tmp_path: Path) -> None:
    store = Store(tmp_path)
    store.land(Round(0), episode(0, 0))
    done = result(0)
    store.append(done)
    assert done.stored_at is not None and done.stored_at <= time.monotonic()
    assert not (tmp_path / ".landing" / "000000").exists()
    assert sorted(Store(tmp_path).landed(Round(0))) == [Key(0, 0), Key(0, 1)]
    assert not store.land(Round(0), episode(0, 0))


def test_appending_twice_changes_nothing(tmp_path: Path) -> None:
    store = Store(tmp_path)
    store.append(result(0))
    before = (tmp_path / "000000.parquet").stat().st_mtime_ns
    store.append(result(0))
    assert (tmp_path / "000000.parquet").stat().st_mtime_ns == before


def test_replay_is_the_newest_episodes_oldest_first_also_after_a_restart(tmp_path: Path) -> None:
    store = Store(tmp_path)
    for iteration in range(3):
        store.append(result(iteration))
    for reader in (store, Store(tmp_path)):
        keys = [trajectory.ticket.key for trajectory in reader.replay(until=2, capacity=3)]
        assert keys == [Key(1, 1), Key(2, 0), Key(2, 1)]


def alive(found: list[weakref.ref[Trajectory]]) -> int:
    gc.collect()
    return sum(each() is not None for each in found)


def test_whoever_fills_a_cache_evicts_it_with_a_reader_elsewhere(tmp_path: Path) -> None:
    """With trainer=torchrun, task_mode=collect and Fleet.collect nobody replays what the host's store was given."""
    store, found = Store(tmp_path), list[weakref.ref[Trajectory]]()
    for iteration in range(5):
        done = result(iteration)
        found += [weakref.ref(each) for each in done.trajectories]
        store.append(done)
        del done
        assert alive(found) == 2
    for iteration in range(5):
        store.read(iteration)
    assert len(store._recent) == 1


def test_iterations_that_are_replayed_stay_in_memory_and_no_others(tmp_path: Path) -> None:
    store, found = Store(tmp_path), list[weakref.ref[Trajectory]]()
    for iteration in range(6):
        done = result(iteration)
        found += [weakref.ref(each) for each in done.trajectories]
        store.append(done)
        assert store.replay(iteration, capacity=4)[-2:] == done.trajectories
        del done
        assert alive(found) <= 4
    reader = Store(tmp_path)
    again = reader.replay(5, capacity=4)
    assert all(one is other for one, other in zip(again, reader.replay(5, capacity=4), strict=True))


def test_a_screen_that_is_seen_again_and_again_is_in_memory_once_after_a_restart(tmp_path: Path) -> None:
    seen = Observation("x", bytes(1000))
    one = replace(episode(0, 0), steps=[replace(episode(0, 0).steps[0], observation=seen)], final_observation=seen)
    Store(tmp_path).append(CollectionResult(0, [one]))
    [back] = Store(tmp_path).read(0)
    assert back.final_observation.image == seen.image
    assert back.final_observation.image is back.steps[0].observation.image
