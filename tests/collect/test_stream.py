"""Keys and their tickets: durable, one each, whatever was cut, damaged, asked twice or taken back meanwhile."""

from __future__ import annotations

import resource
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from hand_pool import HandPool

from digirl_dist.collect.leases import Lost
from digirl_dist.collect.rollout_log import RolloutLog
from digirl_dist.collect.stream import Request, Rollout, Stream
from digirl_dist.errors import CollectionError, RunFolderError, SettingsError
from digirl_dist.judge import with_verdict
from digirl_dist.storage import json_lines
from digirl_dist.tasks import Round, Task, Ticket
from digirl_dist.trajectory import Trajectory

TASK = Task("count", params={"x": [1, 2.5]})


class Ground:
    """A stream on a folder, and the pool that it is a part of."""

    def __init__(self, folder: Path, judges: Any = None) -> None:
        self.folder = folder
        self.judges = judges
        self.open()

    def open(self, first_page: int = 0) -> None:
        """As a process does that comes after one that was killed."""
        self.pool = HandPool(self.folder)
        self.pool.judges = self.judges
        log = RolloutLog(self.folder / "rollouts.jsonl")
        self.stream = Stream(self.pool, log, first_page, is_judged=self.judges is not None)

    def ask(self, *keys: str | None, seed: int = 1, task: Task = TASK) -> list[Rollout]:
        return self.stream.ask([Request(task, seed, key) for key in keys])

    def land(self, count: int = 10**6) -> list[str]:
        """Has so many episodes land; returns their ids."""
        return self.pool.land_all(count)


@pytest.fixture
def ground(tmp_path: Path) -> Ground:
    return Ground(tmp_path)


def test_a_key_twice_in_one_call_is_one_rollout(ground: Ground) -> None:
    first, second, other, none = ground.ask("k", "k", "other", None)
    assert first is second is not other and none is not other
    assert len(ground.land()) == 3
    with pytest.raises(SettingsError, match="key='new' was asked for before, and not so"):
        ground.stream.ask([Request(TASK, 1, "new"), Request(TASK, 2, "new")])
    assert ground.stream.missing == 0, "nothing of that call was asked for"


def test_what_nobody_began_before_a_kill_gets_no_place_of_another(ground: Ground) -> None:
    ground.ask("a", "b")
    ground.open(first_page=0)  # no episode and no lease tells of them
    (new,) = ground.ask("c")
    asked = [*ground.ask("a", "b"), new]
    assert len({one.ticket.key for one in asked}) == 3
    assert len(ground.land()) == 3 and all(one.done() for one in asked)


def test_rollouts_of_one_seed_draw_their_actions_differently_also_on_other_pages(ground: Ground) -> None:
    """An action is drawn by seed, index and step: rollouts 64 apart were the same episode twice."""
    asked = ground.ask(*[None] * 200, "k")
    ground.stream.ask([Request(TASK, 1)], as_page=True)
    asked += ground.ask(*[None] * 200)
    ground.open(first_page=asked[-1].ticket.iteration + 1)  # as after a crash in the middle of a group
    asked += ground.ask(*[None] * 200)
    assert len({one.ticket.iteration for one in asked}) > 9
    assert len({one.ticket.index for one in asked}) == len(asked) == 601


def test_a_second_call_for_the_same_episodes_draws_the_same_actions(ground: Ground) -> None:
    ground.ask(None)
    first, second = (ground.stream.ask([Request(TASK, seed) for seed in range(100)], as_page=True) for _ in range(2))
    assert [one.ticket.index for one in first] == [one.ticket.index for one in second] == [*range(100)]
    assert len({one.ticket.key for one in first + second}) == 200


def test_a_line_that_was_cut_was_confirmed_to_nobody(ground: Ground) -> None:
    ground.ask("a")
    path = ground.folder / "rollouts.jsonl"
    path.write_bytes(path.read_bytes() + b'{"key": "b", "value": {"itera')
    ground.open()
    assert set(RolloutLog(path).tickets()) == {"a"}
    ground.ask("c")
    assert set(RolloutLog(path).tickets()) == {"a", "c"}


@pytest.mark.parametrize(
    "line", [b"noise\n", b"[]\n", b'{"key": 1, "value": {}}\n', b'{"key": "k", "value": {"x": 1}}\n', b"\0" * 9 + b"\n"]
)
def test_a_damaged_line_is_named_and_not_passed_over(ground: Ground, line: bytes) -> None:
    """A key that is passed over would run a second time."""
    ground.ask("a")
    path = ground.folder / "rollouts.jsonl"
    path.write_bytes(line + path.read_bytes())
    with pytest.raises(RunFolderError, match="rollouts.jsonl is damaged.*; restore it, or move it away"):
        ground.open()


def test_who_acknowledges_a_running_one_and_asks_again_gets_two_and_mixes_none_up(ground: Ground) -> None:
    (old,) = ground.ask("k")
    ground.pool.turn()
    ground.stream.acknowledge(["k"])
    (new,) = ground.ask("k")
    assert new is not old
    ground.land(1)
    assert old.done() and not new.done() and ground.ask("k") == [new]
    ground.land()
    found = new.result(0)
    assert isinstance(found, Trajectory) and ground.stream.landed_as("k") is not None
    assert ground.stream.landed_as("k").episode_id == found.episode_id  # type: ignore[union-attr]


def test_a_page_that_cannot_be_written_keeps_nobody_from_hearing_the_end(
    ground: Ground, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Else the thread that collects would end with its error, and whoever asks later would wait for ever."""

    def full(*_: object) -> None:
        raise RunFolderError("000000.parquet cannot be written: No space left on device")

    ground.stream.ask([Request(TASK, 1, "a")], as_page=True)
    (later,) = ground.ask("b")
    ground.land(1)
    ground.stream.ask([], as_page=True)
    monkeypatch.setattr(ground.pool.store, "append", full)
    ground.pool.end(CollectionError("the disk is full"))
    assert isinstance(later.result(0), Lost)
    monkeypatch.undo()
    ground.open(first_page=9)
    ground.pool.turn()
    assert ground.pool.store.landed(Round(0))


def test_deadlines_of_what_is_over_or_asked_for_again_are_not_kept_and_the_earliest_counts(ground: Ground) -> None:
    """Each was kept until it had passed, once for each time that the rollout was asked for."""
    for number in range(300):
        ground.stream.ask([Request(TASK, 1, due_at=1e6 + number)])
        ground.land()
    assert len(ground.stream._due) < 100
    keys = [f"k{number}" for number in range(100)]
    rollouts = ground.stream.ask([Request(TASK, 1, key, due_at=1e6) for key in keys])
    for _ in range(10):
        ground.stream.ask([Request(TASK, 1, key, due_at=1e5 + number) for number, key in enumerate(keys) if number])
    assert len(ground.stream._due) < 300
    ground.pool.clock = lambda: 1e5 + 50
    ground.pool.turn()
    ground.pool.turn()
    assert [one.done() for one in rollouts] == [0 < number <= 50 for number in range(100)]


def test_what_was_lost_as_a_collection_ended_does_not_run_beside_what_is_asked_for_again(ground: Ground) -> None:
    (old,) = ground.ask("k")
    ground.pool.turn()
    assert len(ground.pool.leases.take("w", 1, version=3)) == 1
    ground.pool.end(CollectionError("no worker"))
    assert old.result(0) == Lost("infrastructure", "no worker")
    (new,) = ground.ask("k")
    assert ground.land() == [f"{new.ticket.key.name}-0"] and new.done()


@contextmanager
def files_cannot_grow() -> Iterator[None]:
    limits = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (1, limits[1]))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, limits)


def test_on_a_full_disk_nothing_is_asked_for_and_nothing_hangs(ground: Ground) -> None:
    (withdrawn,) = ground.ask("k")
    ground.pool.turn()
    with files_cannot_grow():
        with pytest.raises(
            RunFolderError, match="rollouts.jsonl cannot be written: .*; nothing was changed; make room"
        ):
            ground.ask("a", "b")
        withdrawn.cancel()
        ground.pool.turn()
    assert ground.stream.missing == 0 and isinstance(withdrawn.result(0), Lost)
    assert len({one.ticket.key for one in ground.ask("a", "b", "k")}) == 3


@pytest.mark.parametrize("key", ["ключ/🗝", 'a"b\\c', "line\nbreak\u2028", "\0", " ", "k" * 1000])
def test_a_key_is_any_text(ground: Ground, key: str) -> None:
    (asked,) = ground.ask(key)
    ground.open()
    assert ground.ask(key)[0].ticket.key == asked.ticket.key


def test_what_is_too_large_to_be_kept_is_refused(ground: Ground) -> None:
    with pytest.raises(SettingsError, match="shorten it"):
        ground.ask("k", task=Task("large", params={"x": "x" * 2_000_000}))
    assert ground.stream.missing == 0 and RolloutLog(ground.folder / "rollouts.jsonl").tickets() == {}


def test_a_log_does_not_grow_with_what_was_forgotten(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(json_lines, "_SUPERSEDED", 100)
    kept = json_lines.DurableMap(tmp_path / "kept.jsonl")
    kept.write({"stays": 1})
    for number in range(150):
        kept.write({f"k{number}": number})
        kept.write({f"k{number}": None})
    assert len((tmp_path / "kept.jsonl").read_bytes().splitlines()) < 150
    assert json_lines.DurableMap(tmp_path / "kept.jsonl").values == {"stays": 1}


def test_keys_have_a_limit_that_says_what_to_do(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(json_lines, "MOST_KEYS", 3)
    kept = json_lines.DurableMap(tmp_path / "kept.jsonl")
    kept.write({"a": 1, "b": 2, "c": 3})
    with pytest.raises(SettingsError, match="has 3 keys: acknowledge"):
        kept.write({"d": 4})
    kept.write({"a": 5, "b": None})
    kept.write({"d": 4})
    assert json_lines.DurableMap(tmp_path / "kept.jsonl").values == {"c": 3, "a": 5, "d": 4}


def test_a_verdict_that_had_yet_to_be_delivered_is_asked_for_again(tmp_path: Path) -> None:
    """What the emulator said of the episode is no answer."""
    tells: list[Any] = []
    ground = Ground(tmp_path, SimpleNamespace(consider=lambda episode, tell: tells.append((episode, tell))))
    (asked,) = ground.ask("k")
    ground.land()
    assert len(tells) == 1 and not asked.done()
    ground.open(first_page=1)
    (again,) = ground.ask("k")
    ground.pool.turn()
    assert len(tells) == 2 and not again.done() and ground.land() == []
    episode, tell = tells[1]
    tell(with_verdict(episode, False))
    ground.pool.turn()
    found = again.result(0)
    assert isinstance(found, Trajectory) and not found.success
    assert ground.stream.landed_as("k") is found


def test_what_lacks_its_verdict_is_in_no_file_and_the_next_process_has_it_judged(tmp_path: Path) -> None:
    """Files had the emulator's word for it, beside verdicts."""
    judged = {0}
    ground = Ground(
        tmp_path,
        SimpleNamespace(
            consider=lambda episode, tell: tell(
                with_verdict(episode, 0) if episode.ticket.index in judged else CollectionError("the judge is away")
            )
        ),
    )
    asked = ground.stream.ask([Request(TASK, 1, key) for key in ("good", "bad", None)], as_page=True)
    assert len(ground.land()) == 3 and [isinstance(one.result(0), Lost) for one in asked] == [False, True, True]
    assert not ground.pool.store.has(Round(0)) and set(ground.stream.asked) == {"good", "bad"}
    assert ground.ask("good")[0].result(0) is asked[0].result(0)
    ground.stream.acknowledge(["good"])
    judged |= {1, 2}
    ground.open(first_page=1)
    assert ground.land() == [] and [one.success for one in ground.pool.store.read(0)] == [False] * 3


def test_a_round_and_rollouts_on_one_pool_each_get_their_own(ground: Ground) -> None:
    (rollout,) = ground.ask("k")
    round_of_two = [Ticket(7, index, TASK, index, 0) for index in range(2)]
    collected = ground.pool.asked(round_of_two)
    assert len(ground.land()) == 3
    assert [one.ticket.key for one in collected.result(0).trajectories] == [one.key for one in round_of_two]
    assert isinstance(rollout.result(0), Trajectory)


def test_who_waits_when_the_pool_is_closed_is_told_also_of_what_had_not_begun(ground: Ground) -> None:
    (rollout,) = ground.ask("k")
    checkpoint: Any = SimpleNamespace(iteration=0)
    ground.pool.attend()
    begun = ground.pool.begin(checkpoint, [Ticket(7, 0, TASK, 0, 0)])
    ground.pool.close()
    with pytest.raises(CollectionError, match="the fleet was closed"):
        begun.result(10)
    assert isinstance(lost := rollout.result(10), Lost) and "the fleet was closed" in lost.reason
    with pytest.raises(CollectionError, match="the fleet was closed"):
        ground.pool.attend()
