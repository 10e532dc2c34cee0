"""Training with emulators on every rank: acceptance rows B1, B3 to B12 of digirl_dist.train, with real launches."""

from __future__ import annotations

import os
import shutil
import signal
import sys
import time
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from process_watch import eventually
from rank_launch import descendants, example, launch, launch_together, ranks, started, torchrun
from run_files import events, lines, metrics

from chaos.processes import runs
from digirl_dist import Run
from digirl_dist.assembly.validate import Command, refuse_contradictions
from digirl_dist.cli.main import main as run
from digirl_dist.emulator import DiscreteActions, EmulatorSpec
from digirl_dist.errors import SettingsError
from digirl_dist.parallel.loopback import free_port
from digirl_dist.parallel.rank import Rank
from digirl_dist.settings import GenericAgentSettings, configuration
from digirl_dist.storage import parquet
from digirl_dist.storage.checkpoint import Checkpoints
from digirl_dist.train.__main__ import main
from digirl_dist.train.launch import check_launch
from digirl_dist.trajectory import Trajectory

pytestmark = [pytest.mark.system, pytest.mark.long_file(60)]

MODULE = ("-m", "digirl_dist.train", "--config-name", "ranks", "--distributed")
STEPS, SLOTS = 12, 2
"""So that an iteration ends in the middle of episodes."""


def words(folder: Path, *more: str) -> list[str]:
    return [
        "emulator.id=null",
        "emulator.entry_point=user_classes_on_ranks:Recorded",
        f"emulator.kwargs.log={folder}.log",
        f"save_path={folder}",
        f"bsize={SLOTS}",
        f"distributed.steps={STEPS}",
        *["evaluation.every=2", "evaluation.episodes=2"] * (not any(each == "evaluation.every=0" for each in more)),
        *["algorithm.ppo.anneal_iterations=6"] * (not any(each.startswith("train_algorithm=") for each in more)),
        "seed=5",
        *more,
    ]


def took_part(folder: Path) -> list[dict[str, Any]]:
    """Who took part in the last launch."""
    found: list[dict[str, Any]] = events(folder, "ranks")[-1]["ranks"]
    return found


def episodes(folder: Path) -> list[Trajectory]:
    return [each for path in sorted((folder / "trajectories").glob("*.parquet")) for each in parquet.read(path)]


def state(folder: Path) -> tuple[dict[str, torch.Tensor], dict[str, Any]]:
    newest = Checkpoints(folder / "checkpoints").newest()
    assert newest is not None
    return newest.state(), newest.trainer_state()


@pytest.fixture(scope="module")
def three(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Three iterations on two ranks."""
    folder = tmp_path_factory.mktemp("three") / "run"
    ended = launch(example("one_node.sh", *words(folder, "train_iterations=3")))
    assert ended.status == 0, ended.out
    return folder


def test_a_launch_says_what_it_was_made_of_and_continues_with_that_alone(
    three: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (start,) = lines(three / "provenance.jsonl")
    assert start["host"]["cpu"] and start["packages"]["numpy"] and start["changes"] == {}
    assert main([*words(three, "train_iterations=3"), "seed=6"]) == 2
    assert "seed=6, but the run in" in capsys.readouterr().err


def test_b3_ranks_act_with_seeds_of_their_own(three: Path) -> None:
    assert [rank["seed"] for rank in took_part(three)] == [5, 6]
    seeds = {name: [each.ticket.seed for each in episodes(three) if each.worker == name] for name in ("rank0", "rank1")}
    assert all(seeds.values()) and not set(seeds["rank0"]) & set(seeds["rank1"])


def test_b4_global_steps_count_all_ranks_and_the_learning_rate_ends_as_alone(three: Path, tmp_path: Path) -> None:
    assert [line["global_step"] for line in metrics(three)] == [STEPS * SLOTS * 2 * k for k in (1, 2, 3)]
    assert main(words(tmp_path / "one", "train_iterations=3")) == 0
    assert [line["global_step"] for line in metrics(tmp_path / "one")] == [STEPS * SLOTS * k for k in (1, 2, 3)]
    rates = [[line["learning_rate"] for line in metrics(folder)] for folder in (three, tmp_path / "one")]
    assert rates[0] == rates[1] == pytest.approx([1e-3 * (1 - k / 6) for k in range(3)], rel=1e-9)


def test_b5_the_average_is_over_the_episodes_of_all_ranks_each_once(three: Path) -> None:
    found = episodes(three)
    assert len({each.episode_id for each in found}) == len(found) < 200
    rewards = [each.reward for each in found]
    assert metrics(three)[-1]["episode_reward_avg_100"] == pytest.approx(sum(rewards) / len(rewards), abs=1e-5)


def test_b6_rank_0_alone_writes_and_evaluates(three: Path) -> None:
    assert {path.name for path in three.iterdir() if path.name not in (".lock", "provenance")} == {
        *("config.yaml", "run.json", "checkpoints", "trajectories", "metrics.jsonl", "events.jsonl", "tensorboard"),
        *("provenance.jsonl", "logger-tensorboard.json", "logger-tensorboard.log", "status.json"),
    }
    assert [line["iteration"] for line in metrics(three)] == [0, 1, 2]
    assert ["eval_reward_mean" in line for line in metrics(three)] == [False, True, False]
    made = Path(f"{three}.log").read_text().split("\n")
    assert (made.count("made 0"), made.count("made 1")) == (SLOTS + 2, SLOTS + 1)


@pytest.mark.nightly
def test_b7_one_and_two_iterations_are_three(three: Path, tmp_path: Path) -> None:
    """Steps, schedule, optimiser and weights continue; the ranks begin new episodes."""
    resumed = tmp_path / "resumed"
    shutil.copytree(three, resumed, symlinks=True)
    for iteration in (2, 3):  # as if killed in the second
        shutil.rmtree(resumed / "checkpoints" / f"{iteration:06d}")
        (resumed / "trajectories" / f"{iteration - 1:06d}.parquet").unlink()
    ended = launch(ranks(2, *MODULE, *words(resumed, "train_iterations=3")))
    assert ended.status == 0, ended.out
    (_, trainer), (_, again) = state(three), state(resumed)
    assert trainer["global_step"] == again["global_step"] == STEPS * SLOTS * 2 * 3
    counts, rates = (
        [each["algorithm"]["optimizer"]["optimizer"]["state"][0]["step"] for each in (trainer, again)],
        [metrics(folder)[-1]["learning_rate"] for folder in (three, resumed)],
    )
    assert counts[0] == counts[1] > 0 and rates[0] == rates[1]
    ids = [each.episode_id for each in episodes(resumed)]
    assert len(set(ids)) == len(ids)


def test_b7_one_process_goes_on_where_two_ranks_stopped_and_two_again(three: Path, tmp_path: Path) -> None:
    one = tmp_path / "one"
    shutil.copytree(three, one, symlinks=True)
    stored = one / "trajectories"
    shutil.copy(stored / "000002.parquet", stored / "000003.parquet")  # as if killed before the fourth checkpoint
    assert main(words(one, "train_iterations=4")) == 0
    assert {each.worker for each in parquet.read(stored / "000003.parquet")} == {"rank0"}
    last = metrics(one)[-1]
    assert last["world_size"] == 1 and last["global_step"] == STEPS * SLOTS * (2 * 3 + 1)
    assert last["learning_rate"] == pytest.approx(1e-3 * 3 / 6)
    assert state(one)[1]["algorithm"]["optimizer"]["updates"] == 4
    ended = launch(ranks(2, *MODULE, *words(one, "train_iterations=5")))
    assert ended.status == 0, ended.out
    ids = [each.episode_id for each in episodes(one)]
    assert len(set(ids)) == len(ids)
    assert {each.worker for each in parquet.read(stored / "000004.parquet")} == {"rank0", "rank1"}


def test_b7_the_policy_loads_without_any_wrapper(three: Path) -> None:
    policy = GenericAgentSettings().build(EmulatorSpec(DiscreteActions(2), vector_size=2))()
    policy.load_state_dict(state(three)[0])


@pytest.mark.nightly
@pytest.mark.timeout(600)  # of which busy processors take most
def test_an_episode_is_explained_by_what_its_own_rank_learned_from(tmp_path: Path) -> None:
    folder, off = (
        tmp_path / "run",
        [f"algorithm.{name}=0" for name in ("filtered_bc.avoid", "unsolved", "hindsight.most")],
    )
    more = ["train_algorithm=filtered_bc", "algorithm.filtered_bc.top_share=0.5", "trainer.replay_size=3", *off]
    ended = launch(ranks(2, *MODULE, *words(folder, "distributed.steps=30", "train_iterations=2", *more)))
    assert ended.status == 0, ended.out
    run, newest = Run(folder, trust=True), parquet.read(folder / "trajectories" / "000001.parquet")
    assert len(newest) > 2 * 3, "each rank has more new episodes than its replay keeps"
    kept = [step.kept for each in newest for step in run.explain(f"t1.{each.ticket.index}").outcomes]
    assert sum(kept) == metrics(folder)[-1]["kept_steps"] > 0


@pytest.mark.long
def test_b9_a_rank_that_raises_ends_the_launch_and_is_named(tmp_path: Path) -> None:
    with started(ranks(2, *MODULE, *words(tmp_path / "run", "emulator.kwargs.breaks_on=1"))) as process:
        family = []
        began = time.monotonic()
        while process.poll() is None and time.monotonic() - began < 60:
            family = descendants(process.pid) or family
            time.sleep(0.1)
        out, _ = process.communicate()
    assert process.returncode not in (0, None)
    assert "rank 1 of 2 failed" in out and "the corridor has collapsed" in out
    assert out.count("Traceback (most recent call last)") == 1, "told once"
    assert family
    eventually(lambda: not any(runs(child.pid) for child in family), what="the end of the ranks")


@pytest.mark.nightly
@pytest.mark.long
def test_b9_ranks_of_another_node_hear_at_once_why_a_rank_failed(tmp_path: Path) -> None:
    """By themselves they would wait for an hour: no launcher ends them."""
    port, more = free_port(), words(tmp_path / "run", "emulator.kwargs.breaks_on=1", "bsize=1")
    flags = [
        ("--nnodes=2", f"--node_rank={node}", "--master_addr=127.0.0.1", f"--master_port={port}") for node in (0, 1)
    ]
    nodes = launch_together([torchrun(1, *MODULE, *more, flags=own) for own in flags])
    assert all(node.status for node in nodes)
    assert "rank 0 of 2 failed: rank 1 failed: RuntimeError: the corridor has collapsed" in nodes[0].out
    assert "rank 1 of 2 failed" in nodes[1].out


@pytest.mark.component
def test_b10_launches_that_cannot_work_are_refused_with_the_fix(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SettingsError, match="start with torchrun --nproc_per_node=N"):
        check_launch(distributed=True, rank=None)
    with pytest.raises(SettingsError, match="add --distributed"):
        check_launch(distributed=False, rank=Rank(0, 2, 0, 2))
    assert main(["--distributed"]) == 2
    assert "torchrun --nproc_per_node=N" in capsys.readouterr().err
    for word, said in (
        ("train_mode=offline", "use `digirl-dist run` for offline"),
        ("success=judge", "the emulator's own verdicts; use `digirl-dist run` for success=judge"),
        ("task_mode=evaluate", "measure and collect with `digirl-dist run`"),
        ("parallel=worker", "measure and collect with `digirl-dist run`"),
        ("trainer=torchrun", "are started by torchrun themselves"),
        ("train_algorithm=grpo trainer.replay_size=31", "no group would ever be complete"),
        ("worker_ips=[10.0.0.2]", "worker_ips is read by digirl-dist run alone"),
        ("dry_run=true", "dry_run is read by digirl-dist run alone"),
        ("inference=host", "inference is read by digirl-dist run alone"),
        ("ahead=1", "ahead is read by digirl-dist run alone"),
        ("task_order=sequential", "task_order is read by digirl-dist run alone"),
    ):
        assert main(word.split()) == 2
        assert said in capsys.readouterr().err
    in_a_file = replace(configuration.load("config/multimachine", "ranks", []), ahead=1, dry_run=True)
    with pytest.raises(SettingsError, match="ranks with emulators do not read dry_run, ahead: each steps"):
        refuse_contradictions(in_a_file, command=Command.ranks)
    if not torch.cuda.is_available():
        assert main(["trainer.device=cuda"]) == 2
        assert "no CUDA device is visible; use cpu" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("name", "words"),
    [("two_nodes.sh", []), ("two_nodes.sh", ["0"])],
)
def test_an_example_without_its_first_words_says_what_they_are(name: str, words: list[str]) -> None:
    done = launch(example(name, *words))
    assert done.status == 2 and done.out.startswith("usage: ") and name in done.out, done


def test_a_run_says_where_it_is_and_a_finished_one_that_it_is_finished(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    folder = tmp_path / "run"
    run = ["--config-name", "ranks", f"save_path={folder}", "bsize=1", "distributed.steps=4", "train_iterations=1"]
    first = "iteration   0  steps 4  episode_reward_avg_100 -"
    for told in (first, f"{folder} has all 1 iterations; set a larger train_iterations"):
        assert main(run) == 0
        assert capsys.readouterr().out == f"{told}\nrun folder {folder}\n"


@pytest.mark.nightly
def test_ctrl_c_ends_a_run_in_one_line(tmp_path: Path) -> None:
    with started([sys.executable, *MODULE[:-1], f"save_path={tmp_path}/run", "train_iterations=100000"]) as process:
        eventually(lambda: (tmp_path / "run" / "metrics.jsonl").exists(), 60, "the first iteration")
        os.killpg(process.pid, signal.SIGINT)
        out, _ = process.communicate(timeout=60)
    assert process.returncode == 130, out
    assert out.endswith("interrupted; the same command resumes where it stopped\n") and "Traceback" not in out, out


@pytest.fixture(scope="module")
def four(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Two nodes of two ranks, with an evaluation that takes longer than an exchange may.

    With digirl, so that its value functions are learned by ranks, too.
    """
    folder, port = tmp_path_factory.mktemp("four") / "run", free_port()
    slow = ["emulator.kwargs.evaluation_s=5", "trainer.exchange_s=4"]
    more = words(folder, "bsize=1", "train_iterations=3", "train_algorithm=digirl", *slow)
    address = f"127.0.0.1:{port}"
    nodes = launch_together([example("two_nodes.sh", str(node), address, *more) for node in range(2)])
    assert [node.status for node in nodes] == [0, 0], nodes
    return folder


@pytest.mark.nightly
def test_b8_an_evaluation_slower_than_an_exchange_may_be_does_not_kill_the_peers(four: Path) -> None:
    assert metrics(four)[1]["iteration_s"] > 5


@pytest.mark.nightly
def test_b11_two_nodes_of_two_ranks_train_together_with_four_seeds(four: Path) -> None:
    assert [rank["seed"] for rank in took_part(four)] == [5, 6, 7, 8]
    assert len({rank["pid"] for rank in took_part(four)}) == 4
    assert metrics(four)[-1]["world_size"] == 4 and "step_value_loss" in metrics(four)[-1]


def steps_until_good(folder: Path) -> int:
    return next(line["global_step"] for line in metrics(folder) if line.get("episode_reward_avg_100", 0) > 0.8)


@pytest.mark.nightly
@pytest.mark.long
def test_b12_two_ranks_learn_and_one_needs_about_as_many_steps(tmp_path: Path) -> None:
    more = ["train_iterations=7", "algorithm.ppo.anneal_iterations=100", "distributed.steps=64", "bsize=4"]
    more += ["algorithm.ppo.learning_rate=0.005", "evaluation.every=0"]
    ended = launch(ranks(2, *MODULE, *words(tmp_path / "two", *more)))
    assert ended.status == 0, ended.out
    assert main(words(tmp_path / "one", *more, "train_iterations=14")) == 0
    two, one = steps_until_good(tmp_path / "two"), steps_until_good(tmp_path / "one")
    assert 1 / 2.5 < two / one < 2.5


@pytest.mark.component
def test_an_environment_that_tells_no_success_has_no_success_rate(tmp_path: Path) -> None:
    """Every return of CartPole is above 0."""
    more = ["bsize=1", "train_iterations=1", "evaluation.every=1", "evaluation.episodes=1"]
    assert main([f"save_path={tmp_path}", *more]) == 0
    (line,) = metrics(tmp_path)
    assert line["episodes"] and line["reward_mean"] > 0 and line["eval_reward_mean"] > 0
    assert line["success_rate"] is None and line["success_by_task"] == {} and line["eval_success_rate"] is None


@pytest.mark.component
def test_a_line_of_metrics_that_a_crash_lost_is_made_up_for(tmp_path: Path) -> None:
    """It is written after the checkpoint."""
    for iterations in (1, 2):
        assert main(words(tmp_path, "evaluation.every=0", f"train_iterations={iterations}")) == 0
        before = metrics(tmp_path)
        (tmp_path / "metrics.jsonl").write_text("")
    assert [line["iteration"] for line in before] == [0, 1]
    assert before[0]["episodes"] == sum(each.ticket.iteration == 0 for each in episodes(tmp_path))


@pytest.mark.component
def test_a_run_goes_on_with_a_host_or_with_ranks_whichever_began_it(tmp_path: Path) -> None:
    folder = tmp_path / "run"
    same = words(folder, "evaluation.every=0")
    host = ["run", "--config-name", "ranks", *(each for each in same if not each.startswith("distributed."))]
    assert run([*host, "train_iterations=1"]) == 0
    assert main([*same, "train_iterations=2"]) == 0
    assert metrics(folder)[-1]["global_step"] == STEPS * SLOTS
    assert run([*host, "train_iterations=3"]) == 0
    assert [line["iteration"] for line in metrics(folder)] == [0, 1, 2]
    assert {each.ticket.iteration for each in episodes(folder)} == {0, 1, 2}


@pytest.mark.unit
def test_the_configuration_of_ranks_is_complete() -> None:
    settings = configuration.load("config/multimachine", "ranks", [])
    assert settings.distributed.steps * settings.bsize == 1024
