"""Evaluation jobs: acceptance rows D1, D2 and D4 to D9, with real launches."""

from __future__ import annotations

import json
import os
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
from process_watch import eventually
from rank_launch import example, launch, rank_process, ranks, started
from run_files import events
from user_classes_on_ranks import Fragile

from digirl_dist.errors import EvalJobsError
from digirl_dist.evaluate.eval_runner import main
from digirl_dist.evaluate.jobs import EvalJob, read_jobs
from digirl_dist.evaluate.results import DONE, JobResult, OutputFolder
from digirl_dist.storage import parquet
from digirl_dist.storage.checkpoint import Checkpoints

pytestmark = [pytest.mark.system, pytest.mark.long_file(40)]

CARTPOLE = ["emulator=gymnasium", "emulator.id=CartPole-v1", "agent=generic", "bsize=1"]
MODULE = ("-m", "digirl_dist.evaluate.eval_runner")


def job(name: str, **more: Any) -> dict[str, Any]:
    return {"name": name, "overrides": CARTPOLE, **({} if "num_steps" in more else {"num_episodes": 2}), **more}


def broken(name: str) -> dict[str, Any]:
    return job(name, save_path="/nowhere/at/all")


def write(path: Path, jobs: Sequence[dict[str, Any]]) -> Path:
    path.write_text(json.dumps({"device": "cpu", "jobs": jobs}))
    return path


def arguments(jobs: Path, out: Path, *more: str) -> list[str]:
    return ["--eval_jobs_config", str(jobs), "--output_dir", str(out), *more]


def merged(out: Path) -> list[dict[str, Any]]:
    results: list[dict[str, Any]] = json.loads((out / "results.json").read_text())["jobs"]
    return results


def statuses(out: Path) -> dict[str, str]:
    return {result["name"]: result["status"] for result in merged(out)}


def is_done(result: Path) -> bool:
    return result.exists() and json.loads(result.read_text())["status"] == DONE


def be_rank(rank: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """One of two, in this process."""
    for name, value in {"RANK": rank, "WORLD_SIZE": 2, "LOCAL_RANK": rank, "LOCAL_WORLD_SIZE": 2}.items():
        monkeypatch.setenv(name, str(value))


@pytest.fixture(scope="module")
def five(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Five jobs on two ranks."""
    folder = tmp_path_factory.mktemp("five")
    jobs = write(folder / "jobs.json", [job(f"job{k}", seed=k) for k in range(5)])
    for rank in (1, 0):
        with pytest.MonkeyPatch.context() as patch:
            be_rank(rank, patch)
            assert main(arguments(jobs, folder / "two")) == 0
    return folder


@pytest.mark.timeout(400)  # five jobs
def test_d1_jobs_go_to_the_rank_that_their_index_leaves(five: Path) -> None:
    assert [result["rank"] for result in merged(five / "two")] == [0, 1, 0, 1, 0]


def test_d1_a_rank_without_jobs_exits_in_order(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    jobs = write(tmp_path / "jobs.json", [job("only")])
    for rank in (1, 0):
        be_rank(rank, monkeypatch)
        assert main(arguments(jobs, tmp_path / "out")) == 0
    assert statuses(tmp_path / "out") == {"only": "done"}


@pytest.mark.nightly
def test_d1_the_documents_command_runs_a_job_on_each_of_four_ranks(tmp_path: Path) -> None:
    ended = launch(example("eval_jobs.sh", "--output_dir", str(tmp_path / "out"), "--policy_device", "cpu"))
    assert ended.status == 0, ended.out
    assert [result["rank"] for result in merged(tmp_path / "out")] == [0, 1, 2, 3]


def test_d2_datasets_name_their_rank_only_where_there_are_several(five: Path, tmp_path: Path) -> None:
    assert {path.name for path in (five / "two").glob("dataset_*")} == {
        f"dataset_job{k}_rank{k % 2}.parquet" for k in range(5)
    }
    assert main(arguments(write(tmp_path / "jobs.json", [job("one")]), tmp_path / "out")) == 0
    assert [path.name for path in (tmp_path / "out").glob("dataset_*")] == ["dataset_one.parquet"]


@pytest.mark.unit
def test_d2_two_jobs_of_one_name_are_refused_before_anything_runs(tmp_path: Path) -> None:
    jobs = write(tmp_path / "jobs.json", [job("same"), job("same", seed=1)])
    with pytest.raises(ValueError, match="more than one job called 'same'"):
        read_jobs(jobs)
    assert main(arguments(jobs, tmp_path / "out")) == 2
    assert not (tmp_path / "out").exists()


@pytest.mark.unit
def test_a_list_may_lie_below_the_home_folder(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Shells leave the ``~`` of ``--eval_jobs_config=~/jobs.json`` as it is."""
    monkeypatch.setenv("HOME", str(tmp_path))
    write(tmp_path / "jobs.json", [job("same"), job("same")])
    assert main(["--eval_jobs_config=~/jobs.json", f"--output_dir={tmp_path / 'out'}"]) == 2
    assert "more than one job called 'same'" in capsys.readouterr().err


COUNTING = ["emulator=custom", "emulator.entry_point=user_classes:Counter", "emulator.kwargs.length=12", "bsize=1"]
MOODY = [*COUNTING, "agent=custom", "agent.entry_point=user_classes_on_ranks:Moody", "limits.episode_attempts=1"]
FAILURES = {
    "SettingsError: Moody: TypeError: nobody can make me (at ": [*MOODY, "agent.kwargs.fails=made"],
    "AgentError: Moody.act: SystemExit: I leave": [*MOODY, "agent.kwargs.fails=exits"],
    "ZeroDivisionError": [*MOODY, "agent.kwargs.fails=acts"],
    "SettingsError: there is no key 'bsiez'": [*MOODY, "bsiez=1"],
    "SettingsError: emulator.entry_point=nowhere:Emulator: module 'nowhere'": [
        "emulator=custom",
        "emulator.entry_point=nowhere:Emulator",
    ],
    "CheckpointError: /nowhere": [*MOODY],
}
"""What a job may come to before its first episode, in its policy and in its emulator."""


@pytest.mark.component
def test_d4_a_failing_job_stops_the_run(tmp_path: Path) -> None:
    jobs = [job("bad", overrides=FAILURES["ZeroDivisionError"]), job("good")]
    assert main(arguments(write(tmp_path / "jobs.json", jobs), tmp_path / "out")) == 1
    assert statuses(tmp_path / "out") == {"bad": "failed", "good": "missing"}


@pytest.mark.component
@pytest.mark.parametrize(
    ("wrong", "said"),
    [
        ({"overrides": [*CARTPOLE, "bsiez=1"]}, "there is no key 'bsiez'; did you mean 'bsize'?"),
        ({"config_name": "evl"}, "there is no evl.yaml in"),
        ({"overrides": [*CARTPOLE, "limits.reset_s=-1"]}, "limits.reset_s"),
        ({"save_path": "/nowhere/at/all"}, "/nowhere/at/all/checkpoints holds no checkpoint"),
        ({"overrides": ["agent=endpoint", "agent.model=m", "agent.key_variable=NO_SUCH_KEY"]}, "export NO_SUCH_KEY"),
    ],
)
def test_what_no_job_can_do_is_told_before_the_first_one_runs(
    wrong: dict[str, Any], said: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    jobs = write(tmp_path / "jobs.json", [job("good"), job("bad", **wrong)])
    assert main(arguments(jobs, tmp_path / "out")) == 2
    told = capsys.readouterr()
    assert "job 'bad' cannot run: " in told.err and said in told.err and "runs good" not in told.out


@pytest.mark.unit
@pytest.mark.parametrize("wait", ["-1", "nan", "soon"])
def test_a_wait_is_a_number_of_seconds(wait: str, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit, match="2"):
        main(["--eval_jobs_config", "jobs.json", f"--merge_wait={wait}"])
    assert f"--merge_wait: '{wait}' is no number of seconds from 0 up" in capsys.readouterr().err


@pytest.mark.nightly
@pytest.mark.component
def test_two_evaluations_at_once_never_run_the_same_job(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """The second wrote into the episodes of the first, and each marked jobs of the other as failed."""
    jobs, out = write(tmp_path / "jobs.json", [job("one"), job("two")]), tmp_path / "out"
    slow = job("two", overrides=[*MOODY, "emulator.kwargs.step_s=0.5"], num_episodes=200)
    write(jobs, [job("one"), slow])
    with started([sys.executable, *MODULE, *arguments(jobs, out)], PYTHONPATH=os.pathsep.join(sys.path)) as first:
        eventually(lambda: (out / "runs/two/events.jsonl").exists(), 160, "the second job")
        assert main(arguments(write(tmp_path / "other.json", [slow]), out)) == 1
        assert f"save_path={out / 'runs/two'} is in use by process {first.pid}" in capsys.readouterr().err
        assert statuses(out)["two"] == "missing"
        assert main(arguments(write(tmp_path / "third.json", [job("three")]), out)) == 0, "another job may run there"
        first.kill()
        first.wait()


@pytest.mark.parametrize("kind", FAILURES)
@pytest.mark.component
def test_d4_whatever_a_job_raises_is_told_and_the_rest_run(
    kind: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    bad = job("bad", overrides=FAILURES[kind], **({"save_path": "/nowhere"} if kind.startswith("Checkpoint") else {}))
    jobs = write(tmp_path / "jobs.json", [bad, job("good", overrides=MOODY)])
    assert main(arguments(jobs, tmp_path / "out", "--continue_on_error")) == 1
    assert statuses(tmp_path / "out") == {"bad": "failed", "good": "done"}
    assert kind.split(":")[0] in merged(tmp_path / "out")[0]["traceback"]
    assert f"bad failed: {kind}" in capsys.readouterr().err or kind == "ZeroDivisionError"


@pytest.mark.component
def test_d4_a_damaged_run_folder_is_its_jobs_alone(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    out, jobs = tmp_path / "out", [job("bad", overrides=MOODY), job("good", overrides=MOODY)]
    identity = out / "runs" / "bad" / "run.json"
    identity.parent.mkdir(parents=True)
    identity.touch()
    command = arguments(write(tmp_path / "jobs.json", jobs), out, "--continue_on_error")
    assert main(command) == 1
    assert statuses(out) == {"bad": "failed", "good": "done"}
    assert f"{identity} is damaged; restore it, or remove it to go on" in capsys.readouterr().err
    identity.unlink()
    assert main(command) == 0


@pytest.mark.component
def test_a_job_keeps_the_episodes_that_finished(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    fragile = [*MOODY, "emulator.entry_point=user_classes_on_ranks:Fragile", "limits.episode_attempts=2"]
    jobs = write(tmp_path / "jobs.json", [job("odd", overrides=fragile, num_episodes=6), job("good", overrides=MOODY)])
    others = [tmp_path / "out" / f"dataset_{name}.parquet" for name in ("odd_rank1", "oddity", "odd_rank1_rank0")]
    (tmp_path / "out").mkdir()
    for path in others:
        path.touch()
    assert main(arguments(jobs, tmp_path / "out", "--continue_on_error")) == 1
    assert statuses(tmp_path / "out") == {"odd": "incomplete", "good": "done"}
    assert [path.exists() for path in others] == [False, True, True], "the first would count twice"
    [odd, _] = merged(tmp_path / "out")
    kept = parquet.read(tmp_path / "out" / "dataset_odd.parquet")
    assert 0 < len(kept) == odd["metrics"]["episodes"] < 6 and not any(Fragile.suffers(one.ticket.seed) for one in kept)
    told = f"{len(kept)} of 6 episodes; set aside: "
    assert odd["traceback"].startswith(told) and "no way to begin with seed" in odd["traceback"]
    assert f"odd is incomplete: {told}" in capsys.readouterr().err


@pytest.mark.component
def test_an_incomplete_job_becomes_complete_once_its_environment_is_there(tmp_path: Path) -> None:
    down = tmp_path / "down"
    away = ["emulator.entry_point=user_classes_on_ranks:Away", f"emulator.kwargs.down={down}"]
    jobs, told = write(tmp_path / "jobs.json", [job("odd", overrides=[*MOODY, *away], num_episodes=6)]), []
    for reason in ("the server is down", "it is down again"):
        down.write_text(reason)
        assert main(arguments(jobs, tmp_path / "out")) == 1
        [odd] = merged(tmp_path / "out")
        assert odd["status"] == "incomplete"
        told.append(odd["traceback"])
    assert "the server is down" in told[0] and "it is down again" in told[1] and "the server is down" not in told[1]
    before = parquet.read(tmp_path / "out" / "dataset_odd.parquet")
    down.unlink()
    assert main(arguments(jobs, tmp_path / "out", "--resume")) == 0
    assert statuses(tmp_path / "out") == {"odd": "done"}
    whole = {one.episode_id for one in parquet.read(tmp_path / "out" / "dataset_odd.parquet")}
    assert len(whole) == 6 and {one.episode_id for one in before} < whole
    ended = [each["ticket"] for each in events(tmp_path / "out" / "runs" / "odd", "episode")]
    assert sorted(ended) == [*range(6)], "none ran again"


@pytest.mark.component
def test_a_job_of_many_episodes_tells_which_were_set_aside(tmp_path: Path) -> None:
    from digirl_dist.evaluate.measure import _set_aside

    aside, usual = {"event": "ticket_set_aside", "ticket": 3, "reason": "it hangs"}, {"event": "episode", "ticket": 4}
    lines = [json.dumps(aside), *[json.dumps({**usual, "worker": "w" * 300})] * 27_000]
    (tmp_path / "events.jsonl").write_text("\n".join(lines) + "\n")
    assert _set_aside(tmp_path) == ["episode 3: it hangs"]


def test_d4_with_continue_on_error_the_rest_run_and_the_ranks_fail_all_the_same(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    jobs = write(tmp_path / "jobs.json", [job("good"), broken("bad"), job("late", num_episodes=3), job("also")])
    for rank, status in ((1, 0), (0, 1)):  # rank 0 waits for the others, and tells of all
        be_rank(rank, monkeypatch)
        assert main(arguments(jobs, tmp_path / "out", "--continue_on_error")) == status
    assert statuses(tmp_path / "out") == {"good": "done", "bad": "failed", "late": "done", "also": "done"}
    assert "CheckpointError" in merged(tmp_path / "out")[1]["traceback"]


@pytest.mark.timeout(600)  # ten jobs
def test_d5_the_merged_table_is_that_of_one_process(five: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(arguments(five / "jobs.json", five / "one")) == 0
    told = capsys.readouterr().out
    assert "job4" in told and "reward_mean" in told

    def comparable(result: dict[str, Any]) -> dict[str, Any]:
        return {key: value for key, value in result.items() if key not in ("rank", "seconds")}

    two, one = merged(five / "two"), merged(five / "one")
    assert [comparable(result) for result in two] == [comparable(result) for result in one]
    assert all(result["metrics"]["episodes"] == 2 and result["seed"] == k for k, result in enumerate(two))


@pytest.mark.nightly
@pytest.mark.long
@pytest.mark.timeout(700)  # of which busy processors take most
def test_d6_a_killed_rank_leaves_its_jobs_missing_and_resume_runs_only_those(tmp_path: Path) -> None:
    gate = tmp_path / "gate"
    emulator = ["emulator=custom", "emulator.entry_point=user_classes_on_ranks:Gated", f"emulator.kwargs.gate={gate}"]
    waits = {"name": "waits", "num_episodes": 1, "overrides": [*emulator, "agent=generic", "bsize=1"]}
    jobs = write(tmp_path / "jobs.json", [job("first"), waits, job("third")])
    out = tmp_path / "out"
    with started(ranks(2, *MODULE, *arguments(jobs, out))) as process:
        deadline = time.monotonic() + 400
        while not (is_done(out / "result_third.json") and gate.with_suffix(".waiting").exists()):
            assert time.monotonic() < deadline and process.poll() is None
            time.sleep(0.1)
        victim = rank_process(process.pid, 1)
        assert victim is not None
        victim.kill()
        assert process.wait(timeout=120) != 0
    assert statuses(out) == {"first": "done", "waits": "missing", "third": "done"}
    before = (out / "result_first.json").stat().st_mtime_ns
    gate.touch()
    assert main(arguments(jobs, out, "--resume")) == 0
    assert statuses(out) == {"first": "done", "waits": "done", "third": "done"}
    assert (out / "result_first.json").stat().st_mtime_ns == before


def test_d6_rank_0_waits_for_the_others_no_longer_than_told(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    be_rank(0, monkeypatch)
    jobs = write(tmp_path / "jobs.json", [job("mine"), job("of_nobody")])
    assert main(arguments(jobs, tmp_path / "out", "--merge_wait", "0.5")) == 1
    assert statuses(tmp_path / "out") == {"mine": "done", "of_nobody": "missing"}


@pytest.mark.nightly
@pytest.mark.component
def test_d7_jobs_with_a_policy_that_has_a_state_share_nothing_of_it(tmp_path: Path) -> None:
    one, two = (job(name, overrides=MOODY, num_episodes=3, seed=4) for name in ("one", "two"))
    assert main(arguments(write(tmp_path / "jobs.json", [one, job("between", overrides=MOODY), two]), tmp_path)) == 0
    actions = [
        [[step.action for step in episode.steps] for episode in parquet.read(tmp_path / f"dataset_{name}.parquet")]
        for name in ("one", "two")
    ]
    assert actions[0] == actions[1] and len(actions[0]) == 3
    assert len({tuple(episode) for episode in actions[0]}) > 1, "the policy's state changes what it does"


@pytest.mark.nightly
def test_d7_a_job_does_not_depend_on_those_before_it(tmp_path: Path) -> None:
    there = [job("a", seed=1), job("b", seed=2)]
    assert main(arguments(write(tmp_path / "there.json", there), tmp_path / "there")) == 0
    assert main(arguments(write(tmp_path / "back.json", there[::-1]), tmp_path / "back")) == 0
    results = [{result["name"]: result["metrics"] for result in merged(tmp_path / way)} for way in ("there", "back")]
    assert results[0] == results[1]
    assert results[0]["a"] != results[0]["b"]


@pytest.mark.nightly
@pytest.mark.timeout(600)  # seven runs
def test_d8_the_number_of_episodes_is_exact_and_steps_are_reached_the_same_way_on_any_slots(tmp_path: Path) -> None:
    jobs = [
        job("exact", num_episodes=5, overrides=[*CARTPOLE[:-1], "bsize=3"]),
        job("steps_1", num_steps=60),
        job("steps_3", num_steps=60, overrides=[*CARTPOLE[:-1], "bsize=3", "max_steps=500"]),
    ]
    out = tmp_path / "out"
    assert main(arguments(write(tmp_path / "jobs.json", jobs), out)) == 0
    assert len(parquet.read(out / "dataset_exact.parquet")) == merged(out)[0]["metrics"]["episodes"] == 5
    lengths = [len(episode.steps) for episode in parquet.read(out / "dataset_steps_3.parquet")]
    assert sum(lengths) >= 60 > sum(lengths[:-1])


@pytest.mark.long
def test_d8_a_job_that_is_done_is_not_run_again_and_another_of_its_name_is_refused(tmp_path: Path) -> None:
    jobs, out = write(tmp_path / "jobs.json", [job("once")]), tmp_path / "out"
    assert main(arguments(jobs, out)) == 0
    before = (out / "dataset_once.parquet").stat().st_mtime_ns
    assert main(arguments(jobs, out)) == 0
    assert (out / "dataset_once.parquet").stat().st_mtime_ns == before
    assert main(arguments(write(jobs, [job("once", seed=9)]), out)) == 2


@pytest.mark.unit
@pytest.mark.parametrize(
    ("wrong", "said"),
    [
        ({"num_steps": 3, "num_episodes": 3}, "exactly one of num_episodes and num_steps"),
        ({"num_episodes": 0}, "at least 1"),
        ({"num_episodes": 1, "seed": -1}, "`int` >= 0 - at `[$].seed`"),
        ({"num_episodes": 1, "seed": 2**64}, "at `[$].seed`"),
        ({"num_episode": 3}, "unknown key 'num_episode'"),
        ({"num_episodes": "3"}, "got `str` - at `[$].num_episodes`"),
        ({"num_episodes": 1, "name": "../x"}, "can be a file's"),
        ({"num_episodes": 1, "name": "x_rank1"}, "ends as the files of a rank do"),
        ({"num_episodes": 1, "overrides": ["bsize=1", "save_path=runs/mine"]}, "the job's own save_path says that"),
        ({"num_episodes": 1, "checkpoint": 3}, "has a checkpoint and no save_path: name the run"),
        ({"num_episodes": 1, "overrides": ["seed=3"]}, "has 'seed=3' in its overrides: the job's own seed"),
    ],
)
def test_d8_wrong_jobs_are_refused_by_name_and_key(tmp_path: Path, wrong: dict[str, Any], said: str) -> None:
    path = tmp_path / "jobs.yaml"
    path.write_text(json.dumps([{"name": "x", **wrong}]))
    with pytest.raises(EvalJobsError, match=said):
        read_jobs(path)


@pytest.mark.unit
def test_d8_unknown_keys_of_a_list_are_refused_also_if_one_is_no_text(tmp_path: Path) -> None:
    path = tmp_path / "jobs.yaml"
    path.write_text("1: a\nother: b\njobs: [{name: x, num_episodes: 1}]\n")
    with pytest.raises(EvalJobsError, match="has the unknown key 1; there are device and jobs"):
        read_jobs(path)


@pytest.mark.unit
def test_a_result_is_that_of_a_checkpoint_and_not_of_whatever_its_run_has_later(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """A run that had gone on got the result of before, or episodes of two policies in one."""
    checkpoints = Checkpoints(tmp_path / "run" / "checkpoints")
    checkpoints.save(0, {}, {}, {})
    jobs, out = write(tmp_path / "jobs.json", [job("mine", save_path=str(tmp_path / "run"))]), tmp_path / "out"
    (pinned,) = [each.pinned() for each in read_jobs(jobs).jobs]
    assert pinned.checkpoint == 0
    out.mkdir()
    OutputFolder(out).write(pinned, JobResult("mine", DONE, 0, 0, {"checkpoint": 0}))
    assert main(arguments(jobs, out)) == 0, "it is done"
    checkpoints.save(1, {}, {}, {})
    assert main(arguments(jobs, out)) == 2
    assert "or of another checkpoint of its run" in capsys.readouterr().err
    again = write(tmp_path / "again.json", [job("mine", save_path=str(tmp_path / "run"), checkpoint=0)])
    assert main(arguments(again, out)) == 0


def test_d9_it_works_on_the_cpu_with_no_launcher_and_no_process_group(tmp_path: Path) -> None:
    import torch.distributed

    path = tmp_path / "jobs.yaml"
    path.write_text(
        "jobs:\n- name: plain\n  num_episodes: 1\n  overrides: [emulator=gymnasium, emulator.id=CartPole-v1]"
    )
    assert read_jobs(path).jobs[0] == EvalJob("plain", 1, overrides=["emulator=gymnasium", "emulator.id=CartPole-v1"])
    jobs = write(tmp_path / "jobs.json", [job("plain", num_episodes=1)])
    assert main(arguments(jobs, tmp_path / "out")) == 0
    assert not torch.distributed.is_initialized()


@pytest.mark.unit
@pytest.mark.parametrize("content", ["", "[1]", "{}", '{"name": 3}', "[" * 100_000])
def test_a_result_that_cannot_be_read_is_named(tmp_path: Path, content: str) -> None:
    out, one = OutputFolder(tmp_path), EvalJob("mine", 1)
    out.result(one).write_text(content)
    with pytest.raises(EvalJobsError, match="cannot be read: .*; remove it to run the job again"):
        out.read(one)


@pytest.mark.unit
def test_d9_an_explicit_cuda_device_is_refused_where_there_is_none(tmp_path: Path) -> None:
    import torch

    if torch.cuda.is_available():
        pytest.skip("this machine has CUDA")
    jobs = write(tmp_path / "jobs.json", [job("plain")])
    assert main(arguments(jobs, tmp_path / "out", "--policy_device", "cuda:0")) == 2
