"""What TensorBoard, Weights & Biases, MLflow and trackio are given: the real packages, offline."""

from __future__ import annotations

import json
import math
import os
import posixpath
import re
import sqlite3
import subprocess
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
import yaml
from process_watch import eventually
from run_files import lines
from small_run import append, episode
from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

from digirl_dist.assembly.validate import refuse_contradictions
from digirl_dist.child_process import environment
from digirl_dist.cli.main import main
from digirl_dist.errors import SettingsError
from digirl_dist.plain_text import HIDDEN
from digirl_dist.report import follower, loggers
from digirl_dist.report.follower import Follower, Followers
from digirl_dist.report.logged import rows, tags
from digirl_dist.report.picture import film
from digirl_dist.settings import configuration
from digirl_dist.settings.keys import flat
from digirl_dist.storage import parquet

pytestmark = pytest.mark.long_file(15)

EPISODES = [episode(0, 0, True), episode(0, 1, False)]
SECRET = "sk-abcdefghijklmnopqrstuvwxyz"


def figures(iteration: int) -> dict[str, Any]:
    return {
        "iteration": iteration,
        "time": 1.0,
        "success_rate": 0.5 + iteration / 10,
        "reward_mean": None,
        "emulator_busy": 0.9,
        "slot_seconds": {"reset": 1.0},
        "success_by_task": {"open: notes": [1, 2]},
        "episodes_by_worker": {"w0": 3, "w1": 0},
        "loss": float("nan"),
        "actor_loss": 0.25,
    }


class Run:
    """A run folder that is logged, and may be resumed."""

    def __init__(self, folder: Path, **config: Any) -> None:
        self.folder = folder
        self.more: dict[str, Any] = {}
        (folder / "trajectories").mkdir(parents=True)
        self.named("run1")
        (folder / "config.yaml").write_text(
            yaml.safe_dump({"seed": 1, "judge": {"key": SECRET}, "logger_project": "project", **config})
        )

    def named(self, run_id: str) -> None:
        (self.folder / "run.json").write_text(json.dumps({"run_id": run_id}))

    def has(self, iterations: Sequence[int]) -> None:
        """Makes these iterations, with an evaluation before the first if that is 0 or 3."""
        metrics = self.folder / "metrics.jsonl"
        before = [line for line in lines(metrics) if line["iteration"] < iterations[0]] if metrics.exists() else []
        metrics.write_text("".join(f"{json.dumps(line)}\n" for line in before))
        if iterations[0] in (0, 3):
            measured = {"iteration": iterations[0], "purpose": "evaluate", "checkpoint": iterations[0]}
            append(self.folder / "evaluation.jsonl", {**measured, "success_rate": 0.3})
        for number in iterations:
            parquet.write(self.folder / "trajectories" / f"{number:06d}.parquet", EPISODES)
            append(metrics, {**figures(number), **self.more})

    def log(self, name: str, *iterations: int) -> None:
        """Logs what the folder has in this process, as a run does that makes these iterations meanwhile."""
        while any(self.folder.glob(f"tensorboard/*.tfevents.{int(time.time())}.*")):
            time.sleep(0.1)  # TensorBoard reads files in the order of their seconds
        if name == "wandb":  # it is made for one run in a process
            words = [sys.executable, "-m", "digirl_dist.report.follower", str(self.folder), name]
            subprocess.run(words, stdin=subprocess.DEVNULL, env=environment(), check=True)
            return
        following, coming = Follower(self.folder, name), list(iterations)

        def is_ended() -> bool:
            for number in coming[:1]:
                self.has([number])
                coming.remove(number)
                return False
            return True

        following.follow(is_ended)

    def taken(self, name: str) -> dict[str, Any]:
        found: dict[str, Any] = json.loads((self.folder / f"logger-{name}.json").read_text())
        return found


@pytest.fixture(autouse=True)
def no_alarm(monkeypatch: pytest.MonkeyPatch) -> None:
    """A follower ends its process if the logger's library hangs in the end; this one is the tests'."""
    monkeypatch.setattr(follower.signal, "alarm", lambda seconds: None)


def test_figures_get_groups_and_only_finite_numbers_are_curves() -> None:
    assert tags(figures(3)) == {
        "learning/success_rate": 0.8,
        "fleet/emulator_busy": 0.9,
        "slots/reset_s": 1.0,
        "tasks/open_ notes": 0.5,
        "fleet/workers": 1.0,
        "algorithm/actor_loss": 0.25,
    }
    assert dict(flat({"a": {"b": [1], "c": {}}, "d": 2})) == {"a.b": [1], "a.c": {}, "d": 2}


@pytest.mark.parametrize("name", ["slot_seconds", "success_by_task", "episodes_by_worker", "loss"])
@pytest.mark.parametrize("odd", [None, 3, "much", [1], {"a": None}, {"a": [1]}, {"a": [10**400, 1]}, 10**400])
def test_figures_of_another_form_are_left_out(name: str, odd: Any) -> None:
    assert tags({name: odd, "loss/of_all": 0.5}).items() >= {("loss/of_all", 0.5)}


def test_one_success_and_one_failure_get_a_picture(tmp_path: Path) -> None:
    file = tmp_path / "000000.parquet"
    parquet.write(file, [*EPISODES, *EPISODES])
    found = rows(file, with_pictures=True)
    assert [row["success"] for row in found if "picture" in row] == [True, False] and len(found) == 4
    assert not any("picture" in row for row in rows(file, with_pictures=False))
    file.write_bytes(b"PAR1")
    assert rows(file, with_pictures=True) == [] == rows(tmp_path / "none", with_pictures=True)
    picture = film(EPISODES[0])
    assert picture is not None and picture.startswith(b"\x89PNG")


@pytest.mark.parametrize("content", ["[1]", '{"figures": "x"}', "3", "\x00"])
def test_a_record_of_another_form_ends_no_run_and_what_it_told_is_logged_anew(tmp_path: Path, content: str) -> None:
    run = Run(tmp_path / "run")
    (run.folder / "logger-tensorboard.json").write_text(content)
    run.has([0])
    run.log("tensorboard")
    assert run.taken("tensorboard")["figures"] == 0


@pytest.mark.parametrize("odd", ["many", [1], math.inf, 10**400, -5])
def test_a_number_of_iterations_that_is_none_ends_no_logger(tmp_path: Path, odd: Any) -> None:
    run = Run(tmp_path / "run", train_iterations=odd)
    run.has([0])
    run.log("tensorboard")
    assert run.taken("tensorboard")["figures"] == 0


@pytest.mark.component
def test_tensorboard_has_groups_settings_and_pictures_and_a_resumed_run_no_step_twice(tmp_path: Path) -> None:
    run = Run(tmp_path / "run")
    run.has([0])
    run.log("tensorboard", 1, 2)
    run.log("tensorboard", 3)
    run.has([2])  # a crash undid iterations 2 and 3
    run.log("tensorboard", 3, 4)
    seen = EventAccumulator(str(run.folder / "tensorboard"), size_guidance={"images": 0}).Reload()
    rate = [(point.step, round(point.value, 3)) for point in seen.Scalars("learning/success_rate")]
    assert rate == [(0, 0.5), (1, 0.6), (2, 0.7), (3, 0.8), (4, 0.9)]
    assert [point.step for point in seen.Scalars("evaluation/success_rate")] == [0, 3]
    assert [image.step for image in seen.Images("episodes/success")] == [0, 1, 2, 3, 4]
    written = b"".join(path.read_bytes() for path in (run.folder / "tensorboard").iterdir())
    assert b"_hparams_/session_start_info" in written and SECRET.encode() not in written


@pytest.mark.component
def test_a_finished_run_can_be_logged_later(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    run = Run(tmp_path / "run")
    run.has([0, 1])
    assert main(["log", str(run.folder), "--to", "tensorboard"]) == 0
    assert run.taken("tensorboard")["figures"] == 1
    there = run.folder / "tensorboard"
    assert capsys.readouterr().out == f"tensorboard was given all of {run.folder}: {there}\n" and any(there.iterdir())
    with pytest.raises(SystemExit):
        main(["log", str(run.folder), "--to", "nowhere"])
    assert "choose from" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("begins", "takes", "status", "said"),
    [
        ("raise RuntimeError('no key:\\nlog in')", "pass", 1, "error: --to faulty: RuntimeError: no key: log in (at "),
        ("raise OSError('no network')", "pass", 1, "error: --to faulty: OSError: no network (at "),
        ("raise SystemExit(3)", "pass", 1, "error: --to faulty: SystemExit: 3 (at "),
        ("import not_there", "pass", 2, "error: --to faulty needs faulty: pip install 'digirl_dist[faulty]'"),
        ("pass", "1 / 0", 1, "error: --to faulty: ZeroDivisionError: division by zero (at "),
        ("pass", "pass", 0, ""),
    ],
)
def test_a_logger_that_fails_is_told_in_one_line(
    begins: str,
    takes: str,
    status: int,
    said: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    (tmp_path / "faulty.py").write_text(LOGGER.format(begins=begins, figures=takes, close="pass"))
    monkeypatch.setattr(loggers, "__path__", [*loggers.__path__, str(tmp_path)])
    monkeypatch.delitem(sys.modules, f"{loggers.__name__}.faulty", raising=False)
    run = Run(tmp_path / "run")
    run.has([0])
    assert main(["log", str(run.folder), "--to", "faulty"]) == status
    told = capsys.readouterr()
    assert told.err.startswith(said) and told.err.count("\n") == bool(said)
    assert told.out == ("" if said else f"faulty was given all of {run.folder}\n")


def test_what_was_measured_before_an_iteration_is_logged_before_it(tmp_path: Path) -> None:
    """A service refuses a step that is less than its last one, and one file may be read before the other is written."""
    run = Run(tmp_path / "run")
    run.has([0, 1, 2, 3])
    given: list[tuple[str, int]] = []
    following = Follower(run.folder, "tensorboard")

    class Told:
        def figures(self, figures: dict[str, float], step: int) -> None:
            given.append((next(iter(figures)).partition("/")[0], step))

        def episodes(self, rows: object, step: int) -> None: ...

        def close(self) -> None: ...

    following._logger = Told()
    append(run.folder / "evaluation.jsonl", {"checkpoint": 6, "success_rate": 0.5})  # its iteration 5 is not there yet
    following.follow(iter([False, True]).__next__)
    steps = [step for _, step in given]
    assert steps == sorted(steps) and given[0] == ("evaluation", 0) and given[-1] == ("evaluation", 6)


ODD = {
    "val/mean@1": 1.0,
    "val/mean#1": 2.0,
    "val/mean_1": 3.0,
    "val": 4.0,
    "algorithm/val/deep": 5.0,
    "//": 6.0,
    "../../up": 7.0,
    "/absolute": 8.0,
    "x" * 300 + "/" + "y" * 300 + "/z": 9.0,
    "größe/😀": 10.0,
    "_step/_wandb": 11.0,
    "a\ud800\0\n/b": 12.0,
    "success_rate/deep": 13.0,
    "learning/success_rate/deep": 14.0,
    "": 15.0,
}


def test_names_that_are_odd_are_cleaned_part_by_part_and_kept_apart() -> None:
    found = tags({**ODD, "success_rate": 0.5, "loss@": math.nan, "big": 1e300, "whole": 10**400, "least": -math.inf})
    assert len(found) == len(ODD) + 1 and sorted(found.values()) == sorted([*ODD.values(), 0.5])
    assert (found["val/mean_1"], found["algorithm/val"], found["learning/success_rate"]) == (3.0, 4.0, 0.5)
    for name in found:
        assert len(name) <= 250 and re.fullmatch(r"[\w.\- /]+", name) and posixpath.normpath(name) == name, name
        assert not any(other.startswith(f"{name}/") for other in found), "a name is no folder of another"
    assert list(tags({"val/mean@1": 1.0})) == ["val/mean_1"]


@pytest.mark.nightly
@pytest.mark.component
@pytest.mark.parametrize("logger", ["tensorboard", "mlflow", "wandb"])
def test_names_that_are_odd_end_no_logger(logger: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip(logger)
    monkeypatch.delenv("MLFLOW_TRACKING_URI", raising=False)
    monkeypatch.setenv("WANDB_MODE", "offline")
    run = Run(tmp_path / "run", emulator={"kwargs": {"a/../b@c": 1, "a": ""}, "x" * 300: 2})
    run.more = ODD
    run.has([0, 1])
    run.log(logger)
    assert run.taken(logger)["figures"] == 1


@pytest.mark.component
@pytest.mark.parametrize("content", ["[" * 200_000, "[]", '{"run_id": "\\ud800"}'], ids=lambda text: text[:20])
def test_a_run_whose_id_cannot_be_read_is_logged_under_its_folders_name(content: str, tmp_path: Path) -> None:
    pytest.importorskip("tensorboard")
    run = Run(tmp_path / "run")
    run.more = {"whole": 10**400}
    run.has([0])
    append(run.folder / "metrics.jsonl", figures(2**70))
    for name in ("run.json", "logger-tensorboard.json"):
        (run.folder / name).write_text(content)
    run.log("tensorboard")
    assert run.taken("tensorboard") == {"run_id": "run", "figures": 0, "evaluation": 0}


@pytest.mark.component
def test_mlflow_has_one_run_with_all_steps_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("mlflow")
    monkeypatch.delenv("MLFLOW_TRACKING_URI", raising=False)
    run = Run(tmp_path / "run")
    run.has([0, 1])
    run.log("mlflow")
    run.has([1])  # iteration 1 is made again
    run.log("mlflow", 2)
    assert Follower(run.folder, "mlflow").follow(lambda: True) == (run.folder / "mlruns").as_uri()
    [there] = (run.folder / "mlruns").glob("[1-9]*/*/meta.yaml")
    rate = [line.split() for line in (there.parent / "metrics/learning/success_rate").read_text().splitlines()]
    assert [(int(step), float(value)) for _, value, step in rate] == [(0, 0.5), (1, 0.6), (2, 0.7)]
    table = json.loads((there.parent / "artifacts/episodes/000002.json").read_text())
    assert table["columns"][:3] == ["iteration", "ticket", "task"] and len(table["data"]) == 2
    assert (there.parent / "artifacts/episodes/000002-success.png").exists()
    assert (there.parent / "params/judge.key").read_text() == HIDDEN
    run.named("run2")  # the folder was copied: a service knows nothing yet of the copy
    run.log("mlflow")
    assert len(list((run.folder / "mlruns").glob("[1-9]*/*/meta.yaml"))) == 2


@pytest.mark.component
def test_weights_and_biases_keeps_curves_settings_and_a_table_when_offline(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    pytest.importorskip("wandb")
    monkeypatch.setenv("WANDB_MODE", "offline")
    run = Run(tmp_path / "run")
    run.has([0, 1])
    run.log("wandb")
    [written] = run.folder.glob("wandb/offline-run-*-run1/run-run1.wandb")
    content = written.read_bytes()
    assert b"learning/success_rate" in content and b"evaluation/success_rate" in content
    assert SECRET.encode() not in content
    tables = [json.loads(path.read_text()) for path in written.parent.glob("files/media/table/episodes/all_*.json")]
    assert sorted(len(table["data"]) for table in tables) == [2, 2] and tables[0]["columns"][2] == "task"
    assert len(list(written.parent.glob("files/media/images/**/*.png"))) == 4
    assert run.taken("wandb") == {"run_id": "run1", "figures": 1, "evaluation": 0}


@pytest.mark.nightly
@pytest.mark.component
def test_trackio_has_all_steps_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """It wants Pillow below 13, so the extra ``dev`` leaves it out."""
    pytest.importorskip("trackio")
    monkeypatch.setenv("TRACKIO_DIR", str(tmp_path / "trackio"))
    run = Run(tmp_path / "mine")
    run.has([0, 1])
    run.log("trackio")
    run.has([1])
    run.log("trackio", 2)
    with sqlite3.connect(tmp_path / "trackio/project.db") as database:
        found = database.execute("SELECT run_name, step, metrics FROM metrics").fetchall()
    assert {name for name, _, _ in found} == {"mine-run1"}
    assert [step for _, step, line in found if "learning/success_rate" in str(line)] == [0, 1, 2]


LOGGER = """
import os, time

class Logger:
    def figures(self, figures, step):
        {figures}

    def episodes(self, rows, step):
        pass

    def close(self):
        {close}

def build(name, run):
    {begins}
    return Logger()
"""


def is_logged(run: Run) -> bool:
    return (run.folder / "logger-tensorboard.json").exists() and run.taken("tensorboard")["figures"] == 19


@pytest.mark.component
@pytest.mark.parametrize(
    ("does", "closes", "limit_s", "said"),
    [
        ("raise RuntimeError('the server said no')", "pass", 120, "RuntimeError: the server said no"),
        ("os._exit(3)", "pass", 120, "ended with status 3"),
        pytest.param(
            "time.sleep(1000)", "pass", 2, "did not finish within 2 s and was ended", marks=pytest.mark.nightly
        ),
        ("pass", "time.sleep(1000)", 2, "did not finish within 2 s and was ended"),
    ],
)
def test_a_logger_that_fails_or_hangs_is_named_once_and_delays_nothing(
    does: str, closes: str, limit_s: float, said: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "faulty.py").write_text(LOGGER.format(begins="pass", figures=does, close=closes))
    (tmp_path / "sitecustomize.py").write_text(
        f"import digirl_dist.report.loggers as package\npackage.__path__.append({str(tmp_path)!r})\n"
        "package.MODULES['faulty'] = 'faulty'\n"
    )
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))
    run, failed = Run(tmp_path / "run"), list[tuple[str, str]]()
    followers = Followers(["faulty", "tensorboard"], run.folder, lambda *told: failed.append(told))
    run.has([0])
    followers.begin()
    for number in range(1, 20):
        run.has([number])
        followers.look()
    eventually(lambda: is_logged(run), 120, "its curves")
    monkeypatch.setattr(follower, "CLOSE_S", limit_s)
    followers.close()
    assert [name for name, _ in failed] == ["faulty"] and said in failed[0][1]
    seen = EventAccumulator(str(run.folder / "tensorboard")).Reload()
    assert len(seen.Scalars("learning/success_rate")) == 20


@pytest.mark.component
def test_the_process_of_a_logger_logs_all_and_ends_with_a_run_that_is_killed(tmp_path: Path) -> None:
    run = Run(tmp_path / "run")
    run.has([0, 1])
    words = [sys.executable, "-m", "digirl_dist.report.follower", str(run.folder), "tensorboard"]
    with subprocess.Popen(words, stdin=subprocess.PIPE, env={**os.environ, **environment()}) as following:
        eventually(lambda: (run.folder / "logger-tensorboard.json").exists(), 120, "the first step")
        assert following.poll() is None and following.stdin is not None
        following.stdin.close()  # as the system does with one of a process that is killed
        assert following.wait(120) == 0
    assert run.taken("tensorboard")["figures"] == 1


def test_an_unknown_logger_is_refused_with_the_nearest() -> None:
    settings = configuration.load("config/multimachine", "host", ["dry_run=true", "loggers=[mlfow]"])
    with pytest.raises(SettingsError, match=r"loggers: there is no 'mlfow'; did you mean 'mlflow'\?"):
        refuse_contradictions(settings)


def test_a_missing_package_names_the_extra(monkeypatch: pytest.MonkeyPatch) -> None:
    settings = configuration.load("config/multimachine", "host", ["dry_run=true", "loggers=[trackio]"])
    monkeypatch.setattr("digirl_dist.report.loggers.find_spec", lambda name: None)
    with pytest.raises(SettingsError, match=r"pip install 'digirl_dist\[trackio\]'"):
        refuse_contradictions(settings)
