"""Emulators that run on over iterations."""

from __future__ import annotations

import json
import math
from collections.abc import Iterator, Sequence
from dataclasses import replace
from typing import ClassVar

import numpy as np
import pytest
from user_classes import Counter

from digirl_dist.errors import AgentError, EmulatorError
from digirl_dist.tasks import Task
from digirl_dist.train.parquet_bytes import from_parquet_bytes, to_parquet_bytes
from digirl_dist.train.streams import Collected, Stream, Streams
from digirl_dist.trajectory import Decision, Observation, Trajectory, Transition


class Dice:
    """Rolls 0 or 1 with the randomness that it is given."""

    def act(self, observations: Sequence[Observation], rngs: Sequence[np.random.Generator]) -> list[Decision]:
        return [Decision(int(rng.integers(2)), -0.7) for rng in rngs]


def streams(length: int = 5, slots: int = 2, max_steps: int | None = None) -> Streams:
    tasks = Counter.tasks("default", "train")
    return Streams([Stream(Counter(length), tasks, "rank0", slot, seed=3) for slot in range(slots)], max_steps)


def actions(trajectories: Sequence[Trajectory]) -> dict[str, list[int]]:
    found: dict[str, list[int]] = {}
    for each in trajectories:
        found.setdefault(each.episode_id, []).extend(step.action for step in each.steps)
    return found


def test_the_fragments_hold_every_step_once_and_the_episodes_are_whole() -> None:
    running, found = streams(), Collected()
    for iteration in range(4):
        part = running.collect(Dice(), iteration, steps=4)
        assert sum(len(fragment.steps) for fragment in part.fragments) == 8
        found.fragments += part.fragments
        found.episodes += part.episodes
    assert len(found.episodes) == 2 * (16 // 5)
    assert all(len(episode.steps) == 5 and episode.steps[-1].terminated for episode in found.episodes)
    by_fragment, whole = actions(found.fragments), actions(found.episodes)
    assert all(by_fragment[name] == whole[name] for name in whole)


def test_what_runs_does_not_depend_on_the_size_of_an_iteration() -> None:
    one, other = streams(), streams()
    at_once = one.collect(Dice(), 0, steps=20).episodes
    bit_by_bit = [episode for k in range(10) for episode in other.collect(Dice(), k, steps=2).episodes]
    assert actions(at_once) == actions(bit_by_bit)


def test_a_stream_is_resumed_in_the_middle_of_an_episode() -> None:
    left, resumed = streams(), streams()
    left.collect(Dice(), 0, steps=7)
    resumed.load_state(json.loads(json.dumps(left.state())))
    here, there = left.collect(Dice(), 1, steps=9), resumed.collect(Dice(), 1, steps=9)
    assert actions(here.fragments) == actions(there.fragments)
    assert actions(here.episodes) == actions(there.episodes)


class Ends(Counter):
    """Ends when it likes, whatever its seed and the actions were."""

    lengths: ClassVar[Iterator[int]] = iter(())

    def reset(self, task: Task, seed: int) -> Observation:
        self._length = next(self.lengths)
        return super().reset(task, seed)

    def step(self, action: int) -> Transition:
        assert self._at < self._length, "stepped after its end"
        return super().step(action)


def test_an_episode_that_a_resume_cannot_repeat_is_followed_by_the_next_one(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Ends, "lengths", iter([9, 9, 3, 9]))  # the second is that of a stream as it is made
    left, resumed = (Streams([Stream(Ends(), Counter.tasks("", ""), "rank0", 0, seed=3)], None) for _ in range(2))
    left.collect(Dice(), 0, steps=5)
    resumed.load_state(json.loads(json.dumps(left.state())))
    found = resumed.collect(Dice(), 1, steps=4)
    assert [(each.episode_id, len(each.steps)) for each in found.fragments] == [("rank0-0-000001", 4)]


def test_streams_that_a_launch_lacks_keep_their_state() -> None:
    three, two = streams(slots=3), streams(slots=2)
    three.collect(Dice(), 0, steps=7)
    saved = json.loads(json.dumps(three.state()))
    two.load_state(saved)
    assert json.loads(json.dumps(two.state())) == saved


class Thirds(Counter):
    """Gives rewards that float32 does not have."""

    def step(self, action: int) -> Transition:
        return replace(super().step(action), reward=1 / 3)


def test_what_is_learned_from_is_what_a_resume_reads_back() -> None:
    stream = Stream(Thirds(), Counter.tasks("default", "train"), "rank0", 0, seed=3)
    [episode] = Streams([stream], None).collect(Dice(), 0, steps=3).episodes
    [read_back] = from_parquet_bytes(to_parquet_bytes([episode]))
    assert [(step.reward, step.log_prob) for step in episode.steps] == [
        (step.reward, step.log_prob) for step in read_back.steps
    ]
    assert episode.reward == read_back.reward


@pytest.mark.parametrize(
    ("log_prob", "reward", "error", "told"),
    [
        (math.nan, 0.0, AgentError, "task count: the agent says that the log-probability of its action is nan"),
        (-0.7, math.nan, EmulatorError, "task count: the reward is nan"),
        (-0.7, 1e39, EmulatorError, "the reward is 1e"),
    ],
)
def test_what_is_no_number_is_told_where_it_comes_from(
    log_prob: float, reward: float, error: type[Exception], told: str
) -> None:
    class Odd(Counter):
        def step(self, action: int) -> Transition:
            return replace(super().step(action), reward=reward)

    stream = Stream(Odd(), Counter.tasks("default", "train"), "rank0", 0, seed=3)
    with pytest.raises(error, match=told):
        stream.advance(Decision(1, log_prob), None)


def test_long_episodes_are_cut_and_not_called_ended() -> None:
    episode = streams(length=50, slots=1, max_steps=3).collect(Dice(), 0, steps=3).episodes[0]
    assert episode.steps[-1].truncated and not episode.steps[-1].terminated


def test_episodes_of_a_group_start_alike_and_act_each_on_their_own() -> None:
    stream = Stream(Counter(8), Counter.tasks("default", "train"), "rank0", 0, seed=3, group_size=3)
    found = Streams([stream], None).collect(Dice(), 0, steps=48).episodes
    seeds = [each.ticket.seed for each in found]
    assert len(set(seeds[:3])) == len(set(seeds[3:])) == 1 and seeds[0] != seeds[3]
    assert len({tuple(step.action for step in each.steps) for each in found}) == 6


def test_endless_episodes_are_truncated_and_named_once(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("digirl_dist.train.streams.MOST_STEPS", 4)
    told: list[str] = []
    stream = Stream(Counter(10**9), Counter.tasks("default", "train"), "rank0", 0, seed=3, say=told.append)
    found = Streams([stream], None).collect(Dice(), 0, steps=13)
    assert [len(each.steps) for each in found.episodes] == [4, 4, 4]
    assert all(each.steps[-1].truncated and not each.steps[-1].terminated for each in found.episodes)
    (words,) = told
    assert words.startswith("task ") and "no end after 4 steps; set max_steps" in words and stream.has_endless
    bounded = Stream(Counter(10**9), Counter.tasks("default", "train"), "rank0", 0, seed=3, say=told.append)
    assert [len(each.steps) for each in Streams([bounded], 7).collect(Dice(), 0, steps=8).episodes] == [7]
    assert len(told) == 1, "who set max_steps knows"


def test_a_long_episode_of_a_bounded_run_is_resumed_beyond_the_usual_limit(monkeypatch: pytest.MonkeyPatch) -> None:
    left, resumed = streams(10**9, max_steps=50), streams(10**9, max_steps=50)
    left.collect(Dice(), 0, steps=9)
    monkeypatch.setattr("digirl_dist.train.streams.MOST_STEPS", 4)
    resumed.load_state(json.loads(json.dumps(left.state())))
    assert resumed.state() == left.state()


class Seedless(Counter):
    """Starts anywhere."""

    def _see(self) -> Observation:
        return Observation(vector=np.random.default_rng().normal(size=2).astype(np.float32))


@pytest.mark.parametrize(("emulator", "size", "count"), [(Seedless, 3, 1), (Seedless, 1, 0), (Counter, 3, 0)])
def test_seeds_that_an_emulator_ignores_are_named_once(emulator: type[Counter], size: int, count: int) -> None:
    told: list[str] = []
    stream = Stream(
        emulator(2), Counter.tasks("default", "train"), "rank0", 0, seed=3, group_size=size, say=told.append
    )
    Streams([stream], None).collect(Dice(), 0, steps=30)
    assert len(told) == count and all("task count: two episodes of seed" in each for each in told)
