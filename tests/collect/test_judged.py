"""Runs whose episodes are judged on the host, by a function or by a model over HTTP."""

from __future__ import annotations

import subprocess
from collections.abc import Callable
from pathlib import Path

import pytest
from chat_server import Endpoint, endpoint, fails
from run_files import events, metrics

from digirl_dist.cli.main import main
from digirl_dist.judge import with_verdict
from digirl_dist.storage import parquet
from digirl_dist.tasks import Task, Ticket
from digirl_dist.trajectory import Observation, Step, Trajectory

pytestmark = [pytest.mark.system, pytest.mark.long]
ROOT = Path(__file__).resolve().parent.parent.parent
HOST = ["--config-path", "config/multimachine", "--config-name", "host"]
KEY = "sk-very-secret-0123456789"
MINE = [
    "emulator=custom",
    "emulator.entry_point=user_classes:Counter",
    "agent=custom",
    "agent.entry_point=user_classes:Coin",
    "rollout_size=6",
    "train_iterations=1",
]


Say = Callable[..., "subprocess.CompletedProcess[str]"]


@pytest.fixture
def say(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Say:
    """A run in this process, which has everything imported already."""
    monkeypatch.chdir(ROOT / "tests")
    monkeypatch.setenv("JUDGE_KEY", KEY)

    def run_here(folder: Path, *words: str) -> subprocess.CompletedProcess[str]:
        words = (*words, *["dry_run_workers=1"] * ("dry_run=true" in words))
        return subprocess.CompletedProcess(
            words, main([*HOST, *MINE, f"save_path={folder}", *words]), *capsys.readouterr()
        )

    return run_here


def judged_by(served: Endpoint) -> list[str]:
    return ["success=judge", "judge.key_variable=JUDGE_KEY", f"judge.base_url={served.url}", "judge.model=m"]


@pytest.mark.unit
def test_a_verdict_replaces_reward_and_success() -> None:
    seen = Observation("x")
    steps = [Step(seen, 0, 0.0, 5.0, False, False), Step(seen, 1, 0.0, 7.0, True, False)]
    episode = Trajectory(Ticket(0, 0, Task("t"), 0, 0), "e", "w", 0, steps, seen, success=True)
    good, bad = with_verdict(episode, True), with_verdict(episode, False)
    assert (good.success, [step.reward for step in good.steps]) == (True, [0.0, 1.0])
    assert (bad.success, [step.reward for step in bad.steps]) == (False, [0.0, 0.0])


@pytest.mark.parametrize("place", ["parallel=single", "dry_run=true"])
def test_a_function_of_the_users_judges_every_episode(say: Say, tmp_path: Path, place: str) -> None:
    done = say(tmp_path, place, "success=predicate", "predicate=user_classes:second_action_is_one")
    assert done.returncode == 0, done.stderr
    trajectories = parquet.read(tmp_path / "trajectories" / "000000.parquet")
    wanted = [trajectory.steps[1].action == 1 for trajectory in trajectories]
    assert [trajectory.success for trajectory in trajectories] == wanted and len(set(wanted)) == 2
    assert metrics(tmp_path)[0]["success_rate"] == pytest.approx(sum(wanted) / 6)
    assert len(events(tmp_path, "judged")) == 6


@pytest.mark.parametrize("place", ["parallel=single", pytest.param("dry_run=true", marks=pytest.mark.nightly)])
def test_a_function_knows_the_params_of_the_task_wherever_the_episode_ran(say: Say, tmp_path: Path, place: str) -> None:
    tasks = tmp_path / "tasks.yaml"
    tasks.write_text("[{id: zero, params: {wanted: 0}}, {id: one, params: {wanted: 1}}]")
    words = ["success=predicate", "predicate=user_classes:acted_as_wanted", f"task_set={tasks}"]
    done = say(tmp_path / "run", place, *words)
    assert done.returncode == 0, done.stderr
    trajectories = parquet.read(tmp_path / "run" / "trajectories" / "000000.parquet")
    assert {each.ticket.task.id: each.ticket.task.params for each in trajectories} == {
        "zero": {"wanted": 0},
        "one": {"wanted": 1},
    }
    assert [each.success for each in trajectories] == [
        each.steps[1].action == each.ticket.task.params["wanted"] for each in trajectories
    ]


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["success=predicate"], "predicate=my_file:is_done"),
        (["success=predicate", "predicate=user_classes:nothing"], "defines no nothing"),
        (["success=judge", "judge.key_variable=NO_SUCH_KEY"], "export NO_SUCH_KEY with it"),
    ],
)
def test_a_judge_that_cannot_be_had_is_refused_before_anything_is_made(
    say: Say, tmp_path: Path, words: list[str], message: str
) -> None:
    done = say(tmp_path / "run", "parallel=single", *words)
    assert done.returncode == 2 and message in done.stderr and not (tmp_path / "run").exists()


@pytest.mark.parametrize(
    ("function", "why"),
    [
        ("json:loads", "TypeError: "),
        ("user_classes:Counter", "neither True nor"),
        ("user_classes:ends_the_process", "SystemExit: 0"),
    ],
)
def test_a_function_that_fails_is_named_with_the_episode(say: Say, tmp_path: Path, function: str, why: str) -> None:
    done = say(tmp_path, "parallel=single", "success=predicate", f"predicate={function}")
    assert done.returncode == 1 and f"predicate {function}, episode 000000-0000" in done.stderr and why in done.stderr


def test_a_model_judges_and_its_key_is_nowhere_in_the_run(say: Say, tmp_path: Path) -> None:
    with endpoint() as served:
        served.script = [fails(503), fails(429)]
        done = say(tmp_path, "dry_run=true", *judged_by(served))
        assert done.returncode == 0, done.stderr
        assert {request["key"] for request in served.requests} == {f"Bearer {KEY}"}
    (figures,) = metrics(tmp_path)
    assert figures["success_rate"] == 1.0 and figures["judge_tokens_in"] == 6 * 1000 - 1000 * figures["judge_cached"]
    assert figures["judge_requests"] + figures["judge_cached"] == 6 + 2 and figures["judge_wait_s"] >= 0
    assert len(events(tmp_path, "judge_away")) == 2
    written = [path for path in tmp_path.rglob("*") if path.is_file()]
    assert len(written) > 5 and not [path for path in written if KEY.encode() in path.read_bytes()]
    assert KEY not in done.stdout + done.stderr


@pytest.mark.nightly
def test_an_outage_that_outlasts_the_patience_loses_no_episode(say: Say, tmp_path: Path) -> None:
    with endpoint() as served:
        served.script = [fails(503)] * 100
        words = ["parallel=single", *judged_by(served), "judge.outage_s=1"]
        down = say(tmp_path, *words)
        assert down.returncode == 1 and "was away for 1 s" in down.stderr and "same command resumes" in down.stderr
        assert len(list((tmp_path / "trajectories/.landing/000000").glob("[0-9]*.episode"))) == 6
        served.script.clear()
        up = say(tmp_path, *words)
        assert up.returncode == 0, up.stderr
    assert len(events(tmp_path, "episode")) == 6, "no episode ran twice"
    assert [each.success for each in parquet.read(tmp_path / "trajectories" / "000000.parquet")] == [True] * 6
