"""Online, offline and both, with evaluations on the way: the whole command on the tests' own emulator."""

from __future__ import annotations

import json
import shutil
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from process_watch import nothing_is_left_of
from run_files import events, lines, metrics
from user_classes import Coin, Counter

from digirl_dist import Run
from digirl_dist.assembly.run import run
from digirl_dist.assembly.validate import Command, refuse_unstartable
from digirl_dist.emulator import EmulatorSpec
from digirl_dist.errors import SettingsError, UntrustedError
from digirl_dist.settings import (
    AlgorithmSettings,
    CustomAgentSettings,
    CustomEmulatorSettings,
    DigirlSettings,
    EvaluationSettings,
    InProcessSettings,
    JudgeSettings,
    OfflineSettings,
    Parallel,
    Settings,
    Success,
    TaskMode,
    TorchrunSettings,
    TrainMode,
)
from digirl_dist.storage import parquet
from digirl_dist.storage.checkpoint import Checkpoints
from digirl_dist.trajectory import Decision, Observation

pytestmark = pytest.mark.system

_EPISODES = {
    "training": "trajectories",
    "evaluation": "evaluation/000003",
    "final": "evaluation/000004",
}
"""Where a run of four iterations has its episodes; the newest checkpoint was measured in training and afterwards."""


def settings(folder: Path, **others: Any) -> Settings:
    return Settings(
        **{
            "parallel": Parallel.single,
            "save_path": str(folder),
            "rollout_size": 8,
            "train_iterations": 4,
            "emulator": CustomEmulatorSettings(entry_point=f"{Counter.__module__}:Counter"),
            "trainer": InProcessSettings(),
            "agent": CustomAgentSettings(entry_point=f"{Coin.__module__}:Coin"),
            **others,
        }
    )


@pytest.fixture(scope="module")
def collected(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run that was evaluated on the way."""
    folder = tmp_path_factory.mktemp("online")
    run(settings(folder, evaluation=EvaluationSettings(every=3, episodes=6), keep_checkpoints=1))
    return folder


def test_evaluations_measure_the_first_the_last_and_every_so_many_on_the_test_split(collected: Path) -> None:
    measured = lines(collected / "evaluation.jsonl")
    assert [line["checkpoint"] for line in measured] == [0, 3, 4]
    assert all(line["episodes"] == 6 for line in measured)
    assert all(line["success_low"] <= line["success_rate"] <= line["success_high"] for line in measured)
    assert sorted(path.name for path in (collected / "evaluation").iterdir()) == ["000000", "000003", "000004"]
    episodes = parquet.read(collected / "evaluation" / "000003" / "training.parquet")
    assert {each.ticket.policy_version for each in episodes} == {3}
    assert {each.ticket.task.instruction for each in episodes} == {"count for test"}


def test_evaluations_train_nothing(collected: Path) -> None:
    """Of four iterations of eight episodes each, all and nothing else were learned from."""
    episodes = [each for number in range(4) for each in parquet.read(collected / f"trajectories/{number:06d}.parquet")]
    assert {each.ticket.task.instruction for each in episodes} == {"count for train"} and len(episodes) == 32
    assert [line["episodes"] for line in metrics(collected)] == [8] * 4


def test_the_best_and_the_newest_checkpoint_are_kept(collected: Path) -> None:
    measured = {line["checkpoint"]: line["success_rate"] for line in lines(collected / "evaluation.jsonl")}
    best = json.loads((collected / "checkpoints" / "best.json").read_text())
    assert best["success_rate"] == max(measured.values()) == measured[best["iteration"]]
    kept = {int(path.name) for path in (collected / "checkpoints").glob("[0-9]*")}
    assert kept == {4, best["iteration"]}


@pytest.mark.parametrize("mode", [TaskMode.evaluate, TaskMode.collect])
def test_the_page_tells_of_a_measurement_and_of_a_collection_too(tmp_path: Path, mode: TaskMode) -> None:
    run(settings(tmp_path, train_iterations=1))
    (tmp_path / "report.html").write_text("stale")
    run(settings(tmp_path, task_mode=mode))
    assert "the measurement finished" in (tmp_path / "report.html").read_text()


def test_offline_nothing_is_collected_and_no_worker_is_needed(collected: Path, tmp_path: Path) -> None:
    offline = OfflineSettings([str(collected / "trajectories")])
    run(settings(tmp_path, train_mode=TrainMode.offline, offline=offline, parallel=Parallel.host))
    assert [line["episodes"] for line in metrics(tmp_path)] == [0] * 4
    assert not list((tmp_path / "trajectories").glob("*.parquet"))
    assert all(line["kept_trajectories"] > 0 for line in metrics(tmp_path))


@pytest.mark.parametrize("mode", [TrainMode.offline, TrainMode.offline_to_online])
def test_what_was_learned_offline_is_measured_on_emulators(collected: Path, tmp_path: Path, mode: TrainMode) -> None:
    offline = {"train_mode": mode, "offline": OfflineSettings([str(collected / "trajectories")], iterations=1)}
    run(settings(tmp_path, train_iterations=1, **{**offline, "train_mode": TrainMode.offline}))
    run(settings(tmp_path, task_mode=TaskMode.evaluate, **offline))
    (line,) = lines(tmp_path / "evaluation.jsonl")
    assert (line["checkpoint"], line["episodes"]) == (1, 8)


@pytest.mark.parametrize("algorithm", ["filtered_bc", "digirl"])
def test_offline_to_online_collects_from_then_on_and_can_be_continued(
    collected: Path, tmp_path: Path, algorithm: str
) -> None:
    offline = OfflineSettings([str(collected / "trajectories")], iterations=2)
    both = {"train_mode": TrainMode.offline_to_online, "offline": offline, "train_algorithm": algorithm}
    run(settings(tmp_path, train_iterations=1, **{**both, "train_mode": TrainMode.offline}))
    run(settings(tmp_path, **both))
    assert [line["episodes"] for line in metrics(tmp_path)] == [0, 0, 8, 8]
    assert sorted(path.name for path in (tmp_path / "trajectories").glob("[0-9]*")) == [
        "000002.parquet",
        "000003.parquet",
    ]


@pytest.mark.nightly
@pytest.mark.long
def test_an_evaluation_that_a_crash_cut_short_is_made_up_for(tmp_path: Path) -> None:
    run(settings(tmp_path, train_iterations=2))
    assert not (tmp_path / "evaluation.jsonl").exists()
    run(settings(tmp_path, train_iterations=2, evaluation=EvaluationSettings(every=5, episodes=2)))
    assert [line["checkpoint"] for line in lines(tmp_path / "evaluation.jsonl")] == [2]
    run(settings(tmp_path, train_iterations=2, evaluation=EvaluationSettings(every=5, episodes=2)))
    assert [line["checkpoint"] for line in lines(tmp_path / "evaluation.jsonl")] == [2]


def test_measurements_while_training_and_afterwards_have_instances_of_their_own(collected: Path) -> None:
    """The emulator's instance follows from the seed; every measurement used to repeat the first iteration's."""
    run(settings(collected, task_mode=TaskMode.evaluate))
    folders = {name: collected / path for name, path in _EPISODES.items()}
    found = {name: [each for file in folder.glob("*.parquet") for each in parquet.read(file)]
             for name, folder in folders.items()}  # fmt: skip
    seeds = {name: {each.ticket.seed for each in episodes} for name, episodes in found.items()}
    assert all(seeds.values())
    assert not seeds["training"] & seeds["evaluation"]
    evaluation, final = found["evaluation"], [each for each in found["final"] if each.ticket.purpose == "measure"]
    assert len(final) == 8 and not {each.ticket.seed for each in final} & seeds["training"]
    assert not {each.ticket.seed for each in final} & {each.ticket.seed for each in evaluation}


def test_collecting_without_learning_takes_instances_of_training(collected: Path, tmp_path: Path) -> None:
    run(settings(tmp_path, task_mode=TaskMode.collect))
    (file,) = (tmp_path / "evaluation" / "000000").glob("*.parquet")
    trained = parquet.read(collected / "trajectories" / "000000.parquet")
    assert [each.ticket.seed for each in parquet.read(file)] == [each.ticket.seed for each in trained]


class One:
    """Always counts; has nothing to learn with."""

    def __init__(self, spec: EmulatorSpec) -> None:
        """Needs to know nothing."""

    def act(self, observations: Sequence[Observation], rngs: Sequence[np.random.Generator]) -> list[Decision]:
        return [Decision(1, float("nan")) for _ in observations]


def test_a_class_that_only_acts_is_measured_and_collects_and_is_refused_for_training(tmp_path: Path) -> None:
    scripted = CustomAgentSettings(entry_point=f"{One.__module__}:One")
    with pytest.raises(SettingsError, match="acts and cannot be trained: measure it with task_mode=evaluate"):
        run(settings(tmp_path, agent=scripted))
    for mode in (TaskMode.evaluate, TaskMode.collect):
        folder = tmp_path / mode.value
        run(settings(folder, agent=scripted, task_mode=mode))
        (file,) = (folder / "evaluation" / "000000").glob("*.parquet")
        assert {step.action for episode in parquet.read(file) for step in episode.steps} == {1}
    with pytest.raises(UntrustedError, match="agent.entry_point"):
        Run(folder).policy()
    assert Run(folder, trust=True).policy().agent.state_dict() == {}


def test_a_run_of_another_algorithm_starts_with_a_checkpoint_and_says_so(collected: Path, tmp_path: Path) -> None:
    learned = Checkpoints(collected / "checkpoints").newest()
    assert learned is not None
    source, own = shutil.copytree(collected, tmp_path / "source", symlinks=True), tmp_path / "own"
    start = {"start_from": str(source), "train_algorithm": "digirl"}
    run(settings(own, train_iterations=1, keep_checkpoints=None, **start))
    assert Checkpoints(own / "checkpoints").open(0).tensors == learned.tensors
    record = json.loads((own / "start.json").read_text())
    assert Path(record["checkpoint"]).name == learned.folder.name
    (event,) = events(own, "started_from")
    assert event["run_id"] == json.loads((collected / "run.json").read_text())["run_id"]
    shutil.rmtree(source)  # a run that goes on needs it no more
    run(settings(own, train_iterations=2, keep_checkpoints=None, **start))
    assert [line["iteration"] for line in metrics(own)] == [0, 1]


ONE_TASK = "[{id: count, instruction: Reach three}]"
TRAIN_ONLY = {"tasks.yaml": f"train: {ONE_TASK}", "tasks_train.yaml": ONE_TASK}


@pytest.mark.parametrize("task_set", ["tasks.yaml", "tasks_{split}.yaml"])
def test_a_set_without_test_tasks_trains_and_is_refused_where_they_would_be_read(
    task_set: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    for name, content in TRAIN_ONLY.items():
        Path(name).write_text(content)
    run(trains := settings(tmp_path / "run", task_set=task_set, train_iterations=1))
    assert [line["iteration"] for line in metrics(tmp_path / "run")] == [0]
    for command in (Command.run, Command.ranks):
        refuse_unstartable(replace(trains, bsize=2), command=command)
        with pytest.raises(SettingsError, match=r"evaluation\.every=2 needs the test split: .*; correct that, or set"):
            refuse_unstartable(replace(trains, bsize=2, evaluation=EvaluationSettings(every=2)), command=command)
    refuse_unstartable(replace(trains, evaluation=EvaluationSettings(every=2), task_mode=TaskMode.collect))


@pytest.mark.long
def test_grpo_and_evaluations_run_on_workers_over_ssh(tmp_path: Path) -> None:
    evaluation = EvaluationSettings(every=2, episodes=4)
    grpo = {"train_algorithm": "grpo", "evaluation": evaluation, "rollout_size": 16}
    run(settings(tmp_path, parallel=Parallel.host, dry_run=True, train_iterations=2, **grpo))
    assert [line["checkpoint"] for line in lines(tmp_path / "evaluation.jsonl")] == [0, 2]
    episodes = parquet.read(tmp_path / "trajectories" / "000001.parquet")
    starts = [(each.ticket.task.id, each.ticket.seed) for each in episodes]
    assert [len(set(starts[first : first + 8])) for first in (0, 8)] == [1, 1] and len(set(starts)) == 2
    actions = {tuple(step.action for step in each.steps) for each in episodes[:4]}
    assert len(actions) > 1  # alike at the start, and then each on its own
    assert "kl_from_old" in metrics(tmp_path)[0]
    nothing_is_left_of(tmp_path)


@pytest.mark.unit
@pytest.mark.parametrize(
    ("others", "said"),
    [
        ({"train_mode": TrainMode.offline}, "needs offline.data"),
        ({"offline": OfflineSettings(["."])}, "offline.data is not read with train_mode=online"),
        (
            {"algorithm": AlgorithmSettings(kwargs={"a": 1})},
            "algorithm.kwargs is not read with algorithm.entry_point=null: set algorithm.entry_point",
        ),
        ({"trainer": TorchrunSettings(shard_blocks=["T5Block"])}, "add trainer.shard=true"),
        (
            {"success": Success.judge, "judge": JudgeSettings(prompt="Is {instructions} done?")},
            r"judge.prompt has \{instructions\}, but there are \{instruction\} and \{actions\}",
        ),
        (
            {"success": Success.predicate, "predicate": "math:pi"},
            "predicate=math:pi is called with a Trajectory, and cannot be: 3.14.* is not a callable object",
        ),
        (
            {"success": Success.predicate, "predicate": "operator:add"},
            "predicate=operator:add is called with a Trajectory, and cannot be: missing a required argument: 'b'",
        ),
        ({"predicate": "my_file:is_done"}, "predicate is not read with success=environment: add success=predicate"),
        (
            {
                "train_mode": TrainMode.offline,
                "train_algorithm": "grpo",
                "offline": OfflineSettings(["."]),
            },
            "train_mode=online",
        ),
        ({"train_algorithm": "grpo", "rollout_size": 10}, "no multiple of algorithm.grpo.group_size=8"),
        ({"rollout_size": 12, "trainer": InProcessSettings(replay_size=8)}, "learned from the others; raise that"),
        (
            {"train_mode": TrainMode.offline_to_online, "offline": OfflineSettings(["."], iterations=4)},
            "train_iterations=4 ends with the first offline.iterations=4, before anything is collected",
        ),
        (
            {"train_algorithm": "digirl", "algorithm": AlgorithmSettings(digirl=DigirlSettings(warmup_iterations=5))},
            "first algorithm.digirl.warmup_iterations=5, before anything is taught to the policy; lower that, or raise",
        ),
        (
            {"train_mode": TrainMode.offline, "offline": OfflineSettings([".", f"../{Path.cwd().name}"])},
            "offline.data=.* names a place twice: name it once",
        ),
        ({"start_from": "/nowhere/at/all"}, "start_from=/nowhere/at/all is no checkpoint"),
    ],
)
def test_what_does_not_go_together_is_refused_before_anything_is_made(
    others: dict[str, Any], said: str, tmp_path: Path
) -> None:
    with pytest.raises(SettingsError, match=said):
        run(settings(tmp_path / "run", **others))
    assert not (tmp_path / "run").exists()
