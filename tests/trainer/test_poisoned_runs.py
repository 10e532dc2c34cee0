"""Whole runs with a poisoned episode, or an emulator that answers NaN: what it costs, and what is said of it."""

from __future__ import annotations

import math
import re
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
import torch
from rank_launch import launch, ranks
from run_files import events, metrics
from user_classes import Coin, Counter

from digirl_dist.cli.main import main
from digirl_dist.storage import parquet
from digirl_dist.tasks import Task
from digirl_dist.trajectory import Observation, Transition

pytestmark = [pytest.mark.system, pytest.mark.long_file(40)]

HERE = "trainer.test_poisoned_runs"
RUN = str(Path(__file__).resolve().parents[2] / "run.py")
SMALL = ["parallel=single", "bsize=1", "rollout_size=12", "train_algorithm=filtered_bc", "train_iterations=2"]


class Poisoned(Counter):
    """The first ``most`` episodes of all have a text that ``Squeamish`` cannot read."""

    def __init__(self, begun: str, most: int = 1) -> None:
        super().__init__()
        self._begun = Path(begun)
        self._most = most
        self._is_first = False

    def reset(self, task: Task, seed: int) -> Observation:
        with self._begun.open("a") as begun:
            begun.write(".")
            self._is_first = begun.tell() <= self._most
        return super().reset(task, seed)

    def step(self, action: Any) -> Transition:
        made = super().step(action)
        return Transition(made.observation, 1.0, made.terminated, success=made.success)

    def _see(self) -> Observation:
        return Observation("poison" if self._is_first else "count", None, super()._see().vector)


class Squeamish(Coin):
    """Acts on everything, and cannot learn from one text."""

    def log_prob(self, observations: Sequence[Observation], actions: Sequence[Any]) -> torch.Tensor:
        if any(seen.text == "poison" for seen in observations):
            raise LookupError("no word for this")
        return super().log_prob(observations, actions)


class Dizzy(Counter):
    """Its second reward is no number."""

    def step(self, action: Any) -> Transition:
        made = super().step(action)
        return Transition(made.observation, math.nan if self._at == 2 else 1.0, made.terminated)


def words(folder: Path, *more: str) -> list[str]:
    own = [f"emulator.kwargs.begun={folder / 'begun'}", "agent=custom", f"agent.entry_point={HERE}:Squeamish"]
    custom = ["emulator=custom", f"emulator.entry_point={HERE}:Poisoned", *own]
    return [*SMALL, *custom, f"save_path={folder / 'run'}", *more]


def check(folder: Path) -> None:
    (told,) = events(folder, "episode_set_aside")
    assert told["worker"] == "local" and told["iteration"] == 0 and "no word for this" in told["reason"]
    (refused,) = (folder / "trajectories" / ".refused").glob("*.parquet")
    (episode,) = parquet.read(refused)
    assert episode.ticket.index == told["ticket"] and episode.steps[0].observation.text == "poison"
    assert [line["episodes_refused"] for line in metrics(folder)] == [1, 0]
    assert len(parquet.read(folder / "trajectories" / "000000.parquet")) == 11


def test_a_run_goes_on_without_the_episode_that_breaks_its_update(tmp_path: Path) -> None:
    assert main(words(tmp_path)) == 0
    check(tmp_path / "run")


@pytest.mark.nightly
def test_a_worker_of_which_several_episodes_break_the_update_is_suspected(tmp_path: Path) -> None:
    assert main(words(tmp_path, "emulator.kwargs.most=3")) == 0
    (told,) = events(tmp_path / "run", "worker_suspected")
    assert (told["worker"], told["episodes"], told["iteration"]) == ("local", 3, 0)
    assert "no word for this" in told["reason"]
    assert [line["episodes_refused"] for line in metrics(tmp_path / "run")] == [3, 0]


@pytest.mark.nightly
@pytest.mark.timeout(600)  # two launches
def test_a_group_of_ranks_that_broke_off_starts_again_without_the_episode(tmp_path: Path) -> None:
    command = [sys.executable, RUN, *words(tmp_path, "trainer=torchrun", "trainer.nproc_per_node=2")]
    ended = launch(command, limit_s=500)
    assert ended.status == 0, ended.out
    assert "the update of iteration 0 broke off; the ranks start again" in ended.out
    check(tmp_path / "run")


@pytest.mark.nightly
@pytest.mark.timeout(600)  # two launches
def test_ranks_of_a_launch_end_and_the_same_command_begins_by_sifting(tmp_path: Path) -> None:
    command = ranks(2, RUN, *words(tmp_path))
    ended = launch(command, limit_s=250)
    assert ended.status != 0
    assert re.search(r"\.update: .*no word for this \(at .*\.py:\d+ in \w+\)\. A run with this save_path", ended.out)
    ended = launch(command, limit_s=300)
    assert ended.status == 0, ended.out
    check(tmp_path / "run")


def test_an_emulator_whose_reward_is_nan_is_named_with_task_and_step(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    emulator = ["emulator=custom", f"emulator.entry_point={HERE}:Dizzy", "agent=generic", "limits.episode_attempts=2"]
    assert main([*SMALL, *emulator, f"save_path={tmp_path}"]) == 1
    said = capsys.readouterr().err
    named = "task count, step 1: the emulator or the agent exceeds the limits of an episode: the reward is nan,"
    assert named in said and "scale" not in said and "Traceback" not in said
    assert named in events(tmp_path, "episode_retried")[0]["reason"]
