"""Whoever reads a live run sees each episode at every moment, and keys tell episodes of one place apart."""

from __future__ import annotations

import os
import shutil
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from digirl_dist.collection import CollectionResult
from digirl_dist.errors import TrajectoryError
from digirl_dist.storage import episode_file, episode_index, parquet
from digirl_dist.storage.episode_index import EpisodeIndex
from digirl_dist.storage.events import Events
from digirl_dist.storage.trajectory_store import Store
from digirl_dist.tasks import Key, Purpose, Round, Task, Ticket
from digirl_dist.trajectory import Observation, Step, Trajectory

SEEN = Observation("seen")
COUNT = 2


def episode(key: Key, seed: int = 0) -> Trajectory:
    version = key.measured if key.purpose == "measure" else key.iteration
    ticket = Ticket(key.iteration, key.number, Task("t"), seed, version, purpose=key.purpose)
    step = Step(SEEN, 0, -0.5, 1.0, terminated=True, truncated=False)
    return Trajectory(ticket, f"of-{key.name}", "w1", 0, [step], SEEN, success=True)


class Live:
    """A run whose round has landed, and whose host writes its file now."""

    def __init__(self, folder: Path, of: Round) -> None:
        self.folder = folder
        (folder / "config.yaml").write_text("seed: 0\n")
        (folder / "events.jsonl").touch()
        self.keys = [Key(of.number, index, of.purpose, of.measured) for index in range(COUNT)]
        self._store, self._round = Store(folder / "trajectories"), of
        for key in self.keys:
            self._store.land(of, episode(key))

    def write(self) -> None:
        landed = [*self._store.landed(self._round).values()]
        number, purpose, measured = self._round
        self._store.append(CollectionResult(number, landed, purpose=purpose, measured=measured))

    def seen_by(self, index: EpisodeIndex) -> None:
        """Fails unless the index has every episode."""
        assert len(index) == COUNT
        for key in self.keys:
            assert index.read(index.find(key.name)).episode_id == f"of-{key.name}"


@pytest.fixture(autouse=True)
def _quick(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "fsync", lambda _: None)


ROUNDS = [Round(0), Round(4, "evaluate"), Round(1, "measure", 4)]


@pytest.fixture(params=ROUNDS, ids=lambda of: of.purpose)
def live(request: pytest.FixtureRequest, tmp_path: Path) -> Live:
    return Live(tmp_path, request.param)


def stepping(monkeypatch: pytest.MonkeyPatch, interrupt: Callable[[], None]) -> None:
    """Calls ``interrupt`` before and after each access of the one side to the disk."""

    def wrapped(real: Callable[..., Any]) -> Callable[..., Any]:
        def call(*args: Any, **kwargs: Any) -> Any:
            interrupt()
            found = real(*args, **kwargs)
            interrupt()
            return found

        return call

    def listed(*args: Any) -> Iterator[str]:
        interrupt()
        found = [*real_glob(*args)]
        interrupt()
        return iter(found)

    real_glob = episode_index.glob.iglob
    monkeypatch.setattr(episode_index.glob, "iglob", listed)
    monkeypatch.setattr(episode_file, "read", wrapped(episode_file.read))
    monkeypatch.setattr(parquet, "opened", wrapped(parquet.opened))
    monkeypatch.setattr(episode_index, "_written", wrapped(episode_index._written))


@pytest.mark.component
def test_identity_by_place_a_host_that_writes_at_any_moment_of_a_reader_hides_no_episode(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The host writes the round's file and removes the landed ones, whole, between any two accesses of the reader."""
    moments = 0
    for of in ROUNDS:
        for at in range(1000):
            with monkeypatch.context() as patched:
                moment, done = 0, False

                def interrupt() -> None:
                    nonlocal moment, done
                    moment += 1
                    if moment - 1 == at and not done:  # noqa: B023 - at once
                        done = True
                        live.write()  # noqa: B023 - at once

                folder = tmp_path / f"{of.purpose}-{at}"
                folder.mkdir()
                live = Live(folder, of)
                index = EpisodeIndex(folder)
                stepping(patched, interrupt)
                index.refresh()
                live.seen_by(index)
                index.refresh()
                live.seen_by(index)
            if not done:
                break
            moments += 1
            shutil.rmtree(folder)
    assert moments > 3 * 10


def test_identity_by_place_a_reader_at_any_moment_of_a_host_that_writes_sees_each_episode(
    live: Live, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The reader looks, with an old index and a new one, between any two changes of the host's."""
    old, looks = EpisodeIndex(live.folder), 0
    old.refresh()
    inside = False

    def look() -> None:
        nonlocal looks, inside
        if not inside:
            inside = True
            looks += 1
            new = EpisodeIndex(live.folder)
            live.seen_by(old)
            for index in (old, new):
                index.refresh()
                live.seen_by(index)
            inside = False

    def watched(real: Callable[..., Any]) -> Callable[..., Any]:
        def call(*args: Any, **kwargs: Any) -> Any:
            look()
            found = real(*args, **kwargs)
            look()
            return found

        return call

    for name in ("replace", "unlink", "rmdir"):
        monkeypatch.setattr(os, name, watched(getattr(os, name)))
    live.write()
    look()
    assert looks > 2 * COUNT


def test_identity_by_place_the_viewer_that_looks_while_a_round_ends_can_read_its_episodes_for_good(live: Live) -> None:
    """``cases/people``: the landed file replaced the place that the round's file had given."""
    landing = live.folder / "trajectories" / ".landing"
    shutil.copytree(landing, live.folder / "copy")
    live.write()
    shutil.copytree(live.folder / "copy", landing, dirs_exist_ok=True)
    index = EpisodeIndex(live.folder)
    index.refresh(10)
    shutil.rmtree(landing)
    for _ in range(3):
        live.seen_by(index)
        index.refresh()


def test_identity_by_place_what_is_read_is_the_episode_that_was_asked_for_after_others_were_refused(live: Live) -> None:
    """A file that was replaced between the look at its time and its opening gave the episode after it."""
    live.write()
    index = EpisodeIndex(live.folder)
    index.refresh()
    (path,) = [*live.folder.glob("trajectories/*.parquet"), *live.folder.glob("evaluation/*/*.parquet")]
    before = path.stat()
    parquet.write(path, [episode(key) for key in live.keys[1:]])
    os.utime(path, ns=(before.st_atime_ns, before.st_mtime_ns))  # as one that is replaced just now
    for key in live.keys[1:]:
        with pytest.raises(TrajectoryError):
            index.read(index.find(key.name))
    os.utime(path)
    for key in live.keys[1:]:
        assert index.read(index.find(key.name)).episode_id == f"of-{key.name}"


def test_identity_by_place_training_evaluations_and_measurements_keep_their_own_time_attempt_and_trouble(
    tmp_path: Path,
) -> None:
    (tmp_path / "config.yaml").write_text("seed: 0\n")
    store, events = Store(tmp_path / "trajectories"), Events(tmp_path / "events.jsonl")
    keys = [Key(0, 1), Key(0, 1, "evaluate"), Key(0, 1, "measure", 0), Key(0, 1, "measure", 2), Key(2, 1)]
    for attempt, key in enumerate(keys):
        store.land(key.round, episode(key))
        if attempt:
            events.emit("episode_retried", **key.place(), reason=f"lost as {key.name}")
        events.emit("episode", worker="w1", **key.place(), success=True, reward=1.0, attempt=attempt)
    events.close()
    index = EpisodeIndex(tmp_path)
    index.refresh()
    rows = {row["key"]: row for row in index.table().to_pylist()}
    assert set(rows) == {"t0.1", "e0.1", "m0.0.1", "m2.0.1", "t2.1"}
    for attempt, key in enumerate(keys):
        assert rows[key.name]["attempt"] == attempt and rows[key.name]["time"] is not None
        assert rows[key.name]["trouble"] == (f"lost as {key.name}" if attempt else "")


@pytest.mark.parametrize("said", [{"purpose": "x"}, {"measured": "2"}, {"iteration": None}, {"ticket": [1]}, {}])
def test_events_of_a_stranger_that_name_no_ticket_are_left_out(tmp_path: Path, said: dict[str, Any]) -> None:
    (tmp_path / "config.yaml").write_text("seed: 0\n")
    events = Events(tmp_path / "events.jsonl")
    events.emit("episode", **{**Key(0, 1).place(), **said} if said else {})
    events.close()
    index = EpisodeIndex(tmp_path)
    index.refresh()
    assert len(index) == 0 and not index.notes


@pytest.mark.parametrize("attempt", [2**31, 10**400, -1], ids=["too large", "huge", "negative"])
def test_numbers_and_texts_of_a_stranger_that_no_column_holds_are_left_out(tmp_path: Path, attempt: int) -> None:
    (tmp_path / "config.yaml").write_text("seed: 0\n")
    Store(tmp_path / "trajectories").land(Round(0), episode(Key(0, 1)))
    events = Events(tmp_path / "events.jsonl")
    for _ in range(2):
        events.emit("episode_retried", **Key(0, 1).place(), reason="half a pair: \ud800")
    events.emit("episode", **Key(0, 1).place(), attempt=attempt)
    events.emit("episode", **{**Key(0, 1).place(), "ticket": attempt})
    events.close()
    index = EpisodeIndex(tmp_path)
    index.refresh()
    (row,) = index.table().to_pylist()
    assert (row["key"], row["attempt"], row["trouble"]) == ("t0.1", None, "half a pair: ?")


def test_what_a_stranger_tells_of_episodes_without_end_takes_no_memory_without_end(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("_MOST_TROUBLED", "_MOST_ARRIVALS"):
        monkeypatch.setattr(episode_index, name, 50)
    (tmp_path / "config.yaml").write_text("seed: 0\n")
    Store(tmp_path / "trajectories").land(Round(0), episode(last := Key(0, 499)))
    events = Events(tmp_path / "events.jsonl")
    for key in [*(Key(0, number) for number in range(499)), *[last] * 20]:
        events.emit("episode_retried", **key.place(), reason=f"{'x' * 3000} as {key.name}")
        events.emit("episode", **key.place(), attempt=1)
    events.close()
    index = EpisodeIndex(tmp_path)
    index.refresh()
    assert max(len(index._troubles), len(index._arrivals)) <= 50
    assert sum(len(reason) for reasons in index._troubles.values() for reason in reasons) <= 50 * 500 + 20 * 500
    (row,) = index.table().to_pylist()
    assert row["attempt"] == 1 and row["trouble"].endswith("x as t0.499") and len(row["trouble"]) == 500


PURPOSES: list[Purpose] = ["train", "evaluate", "measure"]


@pytest.mark.parametrize("purpose", PURPOSES)
def test_a_purpose_comes_back_from_the_files(tmp_path: Path, purpose: Purpose) -> None:
    one = episode(Key(3, 1, purpose, 7 if purpose == "measure" else 0))
    parquet.write(tmp_path / "one.parquet", [one])
    episode_file.write(tmp_path / "one.episode", one)
    (read,) = parquet.read(tmp_path / "one.parquet")
    assert read.ticket.key == episode_file.read(tmp_path / "one.episode").ticket.key == one.ticket.key


def test_an_index_of_many_small_files_takes_little_memory(tmp_path: Path) -> None:
    (tmp_path / "config.yaml").write_text("seed: 0\n")
    store, before = Store(tmp_path / "trajectories"), pa.total_allocated_bytes()
    for number in range(100):
        store.append(CollectionResult(number, [episode(Key(number, 0))]))
    index = EpisodeIndex(tmp_path)
    index.refresh()
    assert index.table()["key"].to_pylist() == [Key(number, 0).name for number in range(100)]
    assert pa.total_allocated_bytes() - before < 100 * 500, "a table of each takes three times as much"
