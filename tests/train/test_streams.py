"""Emulators that run on over iterations."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace
from typing import Any, ClassVar

import numpy as np
import pytest
from user_classes import Counter

from digirl_dist.api.training import compose
from digirl_dist.emulator.plugins import Device
from digirl_dist.errors import AgentError, EmulatorError
from digirl_dist.parallel.rank import Rank
from digirl_dist.tasks import Task
from digirl_dist.train.launch import RankContext, streams_of
from digirl_dist.train.loop import from_parquet_bytes, to_parquet_bytes
from digirl_dist.train.streams import Collected, Stream, Streams
from digirl_dist.train.watched_emulator import Watch
from digirl_dist.trajectory import Decision, Goal, Observation, Trajectory, Transition


class Dice:
    """Rolls 0 or 1 with the randomness that it is given."""

    def act(self, observations: Sequence[Observation], rngs: Sequence[np.random.Generator]) -> list[Decision]:
        return [Decision(int(rng.integers(2)), -0.7) for rng in rngs]


def streams(length: int = 5, slots: int = 2, max_steps: int | None = None) -> Streams:
    tasks = Counter.tasks("default", "train")
    return Streams([Stream(Counter(length), tasks, "rank0", slot, seed=3) for slot in range(slots)], max_steps)


class Fourth(Counter):
    """Notes in ``open`` which ones are; the fourth cannot be reset."""

    open: ClassVar[list[Counter]] = []
    made = 0

    def __init__(self) -> None:
        super().__init__(5)
        Fourth.made += 1
        self._number = Fourth.made
        Fourth.open.append(self)

    def reset(self, task: Task, seed: int) -> Observation:
        if self._number == 4:
            raise EmulatorError("it is the fourth")
        return super().reset(task, seed)

    def close(self) -> None:
        Fourth.open.remove(self)


def test_emulators_that_were_started_are_closed_if_another_one_cannot_begin() -> None:
    device = Device(Fourth, Counter.spec, Counter.tasks("default", "train"))
    watch = Watch(str, 60.0)
    begun = streams_of(RankContext(compose("ranks", {"bsize": 2}), device, Rank(), watch))
    assert len(Fourth.open) == len(begun) == 2
    with pytest.raises(EmulatorError, match="it is the fourth"):
        streams_of(RankContext(compose("ranks", {"bsize": 2}), device, Rank(), watch))
    assert len(Fourth.open) == 2, "those of before alone"


def test_an_emulator_that_cannot_be_closed_leaves_none_of_the_others_open() -> None:
    closed: list[int] = []

    class Stuck(Counter):
        def close(self) -> None:
            closed.append(len(closed))
            raise EmulatorError(f"number {closed[-1]} is stuck")

    tasks = Counter.tasks("default", "train")
    running = [Stream(Stuck(5), tasks, "rank0", slot, seed=3) for slot in range(3)]
    with pytest.raises(EmulatorError, match="is stuck"):
        Streams(running, None).close()
    assert len(closed) == 3


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


def test_each_step_tells_which_policy_took_it() -> None:
    running = streams(slots=1)
    found = [running.collect(Dice(), version, steps=2) for version in range(3)]
    (episode,) = found[2].episodes
    assert episode.versions == [0, 0, 1, 1, 2] and [one.fragments[0].versions for one in found[:2]] == [[0, 0], [1, 1]]


def test_what_runs_does_not_depend_on_the_size_of_an_iteration() -> None:
    one, other = streams(), streams()
    at_once = one.collect(Dice(), 0, steps=20).episodes
    bit_by_bit = [episode for k in range(10) for episode in other.collect(Dice(), k, steps=2).episodes]
    assert actions(at_once) == actions(bit_by_bit)


def test_a_stream_that_begins_later_has_other_episodes() -> None:
    first, later = (
        Streams([Stream(Counter(5), Counter.tasks("default", "train"), "rank0", 0, seed=3, first=begin)], None)
        for begin in (0, 4)
    )
    here, there = (each.collect(Dice(), 4, steps=10).episodes for each in (first, later))
    assert not {each.episode_id for each in here} & {each.episode_id for each in there}
    assert not {each.ticket.seed for each in here} & {each.ticket.seed for each in there}


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


class Buffer(Counter):
    """Answers with the very numbers and goals in which it counts, and takes apart what it is given."""

    def __init__(self) -> None:
        super().__init__(4)
        self._count = np.zeros(2, np.float32)
        self._goals: list[Goal] = []

    def reset(self, task: Task, seed: int) -> Observation:
        task.params.clear()
        self._count[:] = 0
        self._goals.clear()
        super().reset(task, seed)
        return Observation(vector=self._count)

    def step(self, action: list[int]) -> Transition:
        answer = super().step(action.pop())
        self._count += 1
        self._goals.append({"count": [len(self._goals)]})
        return replace(answer, observation=Observation(vector=self._count), achieved=self._goals)


def test_what_an_emulator_changes_later_is_recorded_as_it_was() -> None:
    task, decision = Task("count", params={"start": 0}), Decision([1], -0.7)
    stream = Stream(Buffer(), [task], "rank0", 0, seed=3)
    while not stream.advance(decision, None):
        pass
    episode = stream.episode(0)
    stream.next_episode()
    assert [seen.vector.tolist() for seen in episode.observations if seen.vector is not None] == [
        [count, count] for count in range(5)
    ]
    assert [len(step.achieved) for step in episode.steps] == [1, 2, 3, 4]
    assert [step.action for step in episode.steps] == [[1]] * 4 and task.params == {"start": 0}


@pytest.mark.parametrize("vector", [np.array([0, math.nan]), np.array([0, 2e6]), ["red"]])
def test_observations_that_no_episode_may_have_are_the_emulators_fault(vector: Any) -> None:
    class Odd(Counter):
        def _see(self) -> Observation:
            return Observation(vector=vector)

    with pytest.raises(EmulatorError, match="task count: "):
        Stream(Odd(), Counter.tasks("default", "train"), "rank0", 0, seed=3)


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
