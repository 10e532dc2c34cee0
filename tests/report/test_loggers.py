"""What TensorBoard, Weights & Biases, MLflow and trackio are given: the real packages, offline."""

from __future__ import annotations

import json
import math
import posixpath
import re
import signal
import sqlite3
import subprocess
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
from small_run import episode
from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

from digirl_dist.assembly.validate import refuse_contradictions
from digirl_dist.errors import SettingsError
from digirl_dist.plain_text import HIDDEN
from digirl_dist.report import logger_process
from digirl_dist.report.experiment_log import ExperimentLog
from digirl_dist.report.logged import film, rows, tags
from digirl_dist.report.loggers import LoggedRun, names
from digirl_dist.settings import configuration
from digirl_dist.settings.keys import flat

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

    def __init__(self, folder: Path, *loggers: str) -> None:
        self.folder = folder
        self.loggers = loggers
        self.failed: list[tuple[str, str]] = []
        self.metrics: list[dict[str, Any]] = []
        self.measured: list[dict[str, Any]] = []
        self.asked_after: list[int] = []
        self.run_id, self.is_copy = "run1", False
        self.config: dict[str, Any] = {}
        self.more: dict[str, Any] = {}

    def _after(self, iteration: int) -> list[dict[str, Any]]:
        self.asked_after.append(iteration)
        return [line for line in self.metrics if line["iteration"] > iteration]

    def train(self, iterations: Sequence[int], first: int | None = None) -> None:
        """Makes these iterations in one process, with an evaluation before the first if that is 0 or 3."""
        while any(self.folder.glob(f"tensorboard/*.tfevents.{int(time.time())}.*")):
            time.sleep(0.1)  # TensorBoard reads files in the order of their seconds
        config = {"seed": 1, "judge.key": SECRET, "save_path": str(self.folder), **self.config}
        run = LoggedRun(self.run_id, "mine", str(self.folder), "project", config, is_copy=self.is_copy)
        log = ExperimentLog(self.loggers, run, lambda name, reason: self.failed.append((name, reason)))
        begin = iterations[0] if first is None else first
        self.metrics = [line for line in self.metrics if line["iteration"] < begin]
        log.begin(begin, self._after, self.measured)
        if begin in (0, 3):
            measured = {"iteration": begin, "purpose": "evaluate", "checkpoint": begin, "success_rate": 0.3}
            self.measured.append(measured)
            log.evaluation(measured, begin)
        for iteration in iterations:
            self.metrics.append({**figures(iteration), **self.more})
            log.iteration(self.metrics[-1], EPISODES, iteration)
        log.close()


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


def test_one_success_and_one_failure_get_a_picture() -> None:
    found = rows([*EPISODES, *EPISODES], with_pictures=True)
    assert [row["success"] for row in found if "picture" in row] == [True, False] and len(found) == 4
    assert not any("picture" in row for row in rows(EPISODES, with_pictures=False))
    picture = film(EPISODES[0])
    assert picture is not None and picture.startswith(b"\x89PNG")


@pytest.mark.parametrize("content", ["[1]", '{"tensorboard": 5}', '{"tensorboard": {"figures": "x"}}', "3", "\x00"])
def test_a_record_of_another_form_ends_no_run_and_what_it_told_is_logged_anew(tmp_path: Path, content: str) -> None:
    (tmp_path / "loggers.json").write_text(content)
    run = Run(tmp_path, "tensorboard")
    run.train([0])
    assert not run.failed and json.loads((tmp_path / "loggers.json").read_text())["tensorboard"]["figures"] == 0


def test_tensorboard_has_groups_settings_and_pictures_and_a_resumed_run_no_step_twice(tmp_path: Path) -> None:
    run = Run(tmp_path, "tensorboard")
    run.train([0, 1, 2])
    run.train([3])
    run.train([2, 3, 4])  # a crash undid iterations 2 and 3
    assert run.asked_after == [-1, 2, 1], "figures that were logged are not read again"
    seen = EventAccumulator(str(tmp_path / "tensorboard"), size_guidance={"images": 0}).Reload()
    rate = [(point.step, round(point.value, 3)) for point in seen.Scalars("learning/success_rate")]
    assert rate == [(0, 0.5), (1, 0.6), (2, 0.7), (3, 0.8), (4, 0.9)]
    assert [point.step for point in seen.Scalars("evaluation/success_rate")] == [0, 3]
    assert [image.step for image in seen.Images("episodes/success")] == [0, 1, 2, 3, 4]
    written = b"".join(path.read_bytes() for path in (tmp_path / "tensorboard").iterdir())
    assert b"_hparams_/session_start_info" in written and SECRET.encode() not in written
    assert not run.failed


def test_a_logger_that_is_added_later_gets_the_whole_curve(tmp_path: Path) -> None:
    run = Run(tmp_path)
    run.train([0, 1])
    run.loggers = ("tensorboard",)
    run.train([2])
    seen = EventAccumulator(str(tmp_path / "tensorboard")).Reload()
    assert [point.step for point in seen.Scalars("learning/success_rate")] == [0, 1, 2]


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
    found = tags({**ODD, "success_rate": 0.5, "loss@": math.nan, "big": 1e300, "least": -math.inf})
    assert len(found) == len(ODD) + 1 and sorted(found.values()) == sorted([*ODD.values(), 0.5])
    assert (found["val/mean_1"], found["algorithm/val"], found["learning/success_rate"]) == (3.0, 4.0, 0.5)
    for name in found:
        assert len(name) <= 250 and re.fullmatch(r"[\w.\- /]+", name) and posixpath.normpath(name) == name, name
        assert not any(other.startswith(f"{name}/") for other in found), "a name is no folder of another"
    assert list(tags({"val/mean@1": 1.0})) == ["val/mean_1"]


@pytest.mark.component
@pytest.mark.parametrize("logger", ["tensorboard", "mlflow", "wandb"])
def test_names_that_are_odd_end_no_logger(logger: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip(logger)
    monkeypatch.delenv("MLFLOW_TRACKING_URI", raising=False)
    monkeypatch.setenv("WANDB_MODE", "offline")
    monkeypatch.setattr(logger_process, "CLOSE_S", 120.0)  # names are tried here, and not how quick a library is
    run = Run(tmp_path, logger)
    run.config = {"emulator.kwargs.a/../b@c": 1, "emulator.kwargs.a": "", "x" * 300: 2}
    run.more = ODD
    run.train([0, 1])
    log = tmp_path / f"logger-{logger}.log"
    assert not run.failed, log.read_text() if log.exists() else run.failed
    assert json.loads((tmp_path / "loggers.json").read_text())[logger]["figures"] == 1


@pytest.mark.component
def test_mlflow_has_one_run_with_all_steps_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("mlflow")
    monkeypatch.delenv("MLFLOW_TRACKING_URI", raising=False)
    run = Run(tmp_path, "mlflow")
    run.train([0, 1])
    run.train([1, 2])  # iteration 1 is made again
    assert not run.failed, (tmp_path / "logger-mlflow.log").read_text()
    [there] = (tmp_path / "mlruns").glob("[1-9]*/*/meta.yaml")
    rate = [line.split() for line in (there.parent / "metrics/learning/success_rate").read_text().splitlines()]
    assert [(int(step), float(value)) for _, value, step in rate] == [(0, 0.5), (1, 0.6), (2, 0.7)]
    run.run_id, run.is_copy = "run2", True
    run.train([3])
    assert run.asked_after[-1] == -1, "a service knows nothing yet of a copy"
    assert len(list((tmp_path / "mlruns").glob("[1-9]*/*/meta.yaml"))) == 2
    table = json.loads((there.parent / "artifacts/episodes/000002.json").read_text())
    assert table["columns"][:3] == ["iteration", "ticket", "task"] and len(table["data"]) == 2
    assert (there.parent / "artifacts/episodes/000002-success.png").exists()
    assert (there.parent / "params/judge.key").read_text() == HIDDEN


@pytest.mark.component
def test_weights_and_biases_keeps_curves_settings_and_a_table_when_offline(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    pytest.importorskip("wandb")
    monkeypatch.setenv("WANDB_MODE", "offline")
    run = Run(tmp_path, "wandb")
    run.train([0, 1])
    assert not run.failed, (tmp_path / "logger-wandb.log").read_text()
    [written] = tmp_path.glob("wandb/offline-run-*-run1/run-run1.wandb")
    content = written.read_bytes()
    assert b"learning/success_rate" in content and b"evaluation/success_rate" in content
    assert SECRET.encode() not in content
    tables = [json.loads(path.read_text()) for path in written.parent.glob("files/media/table/episodes/all_*.json")]
    assert sorted(len(table["data"]) for table in tables) == [2, 2] and tables[0]["columns"][2] == "task"
    assert len(list(written.parent.glob("files/media/images/**/*.png"))) == 4
    assert json.loads((tmp_path / "loggers.json").read_text())["wandb"] == {
        "figures": 1,
        "episodes": 1,
        "evaluation": 0,
    }


@pytest.mark.component
def test_trackio_has_all_steps_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """It wants Pillow below 13, so the extra ``dev`` leaves it out."""
    pytest.importorskip("trackio")
    monkeypatch.setenv("TRACKIO_DIR", str(tmp_path / "trackio"))
    run = Run(tmp_path, "trackio")
    run.train([0, 1])
    run.train([1, 2])
    assert not run.failed, (tmp_path / "logger-trackio.log").read_text()
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

PACKAGE, ISOLATED = "json", True

def build(run):
    return Logger()
"""


@pytest.mark.component
@pytest.mark.parametrize(
    ("does", "closes", "said"),
    [
        ("raise RuntimeError('the server said no')", "pass", "RuntimeError: the server said no"),
        ("os._exit(3)", "pass", "ended with status 3"),
        ("time.sleep(1000)", "pass", "did not finish within 2 s and was ended"),
        ("pass", "time.sleep(1000)", "did not finish within 2 s and was ended"),
    ],
)
def test_a_logger_that_fails_or_hangs_is_named_once_and_delays_nothing(
    does: str, closes: str, said: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    import digirl_dist.report.loggers as package

    (tmp_path / "faulty.py").write_text(LOGGER.format(figures=does, close=closes))
    monkeypatch.setattr(package, "__path__", [*package.__path__, str(tmp_path)])
    (tmp_path / "sitecustomize.py").write_text(
        f"import digirl_dist.report.loggers as package\npackage.__path__.append({str(tmp_path)!r})\n"
    )
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))
    monkeypatch.setattr(logger_process, "CLOSE_S", 2.0)
    assert "faulty" in names()
    run = Run(tmp_path, "faulty", "tensorboard")
    began = time.monotonic()
    run.train(range(20))
    assert time.monotonic() - began < 60
    assert [name for name, _ in run.failed] == ["faulty"] and said in run.failed[0][1]
    seen = EventAccumulator(str(tmp_path / "tensorboard")).Reload()
    assert len(seen.Scalars("learning/success_rate")) == 20


@pytest.mark.component
def test_a_logger_that_does_not_keep_up_lacks_the_newest_steps_alone(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A resumed run logs what is newer than all that was taken, so a gap before that would stay."""
    gate, taken, told = tmp_path / "gate", list[int](), list[str]()
    waits = f"while not os.path.exists({str(gate)!r}): time.sleep(0.05)"
    (tmp_path / "slow.py").write_text(LOGGER.format(figures=waits, close="pass"))
    (tmp_path / "sitecustomize.py").write_text(
        f"import digirl_dist.report.loggers as package\npackage.__path__.append({str(tmp_path)!r})\n"
    )
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))
    monkeypatch.setattr(logger_process, "_MOST", 3)
    run = LoggedRun("run1", "mine", str(tmp_path), "project", {})
    logger = logger_process.LoggerProcess("slow", run, told.append, lambda kind, step: taken.append(step))
    for step in range(10):
        logger.give("figures", {"a/b": 1.0}, step)
    gate.touch()
    deadline = time.monotonic() + 60
    while len(taken) < 2 and time.monotonic() < deadline:
        time.sleep(0.05)
    logger.give("figures", {"a/b": 1.0}, 10)
    logger.close()
    assert taken == list(range(len(taken))) and 2 <= len(taken) < 10
    assert len(told) == 1 and "it does not keep up" in told[0]


@pytest.mark.component
def test_the_process_of_a_logger_ends_with_a_run_that_is_killed(tmp_path: Path) -> None:
    program = (
        "import sys, time; from pathlib import Path; from digirl_dist.report.logger_process import LoggerProcess\n"
        "from digirl_dist.report.loggers import LoggedRun\n"
        "run = LoggedRun('run1', 'mine', sys.argv[1], 'project', {})\n"
        "logger = LoggerProcess('tensorboard', run, print, lambda kind, step: print(logger._process.pid, flush=True))\n"
        "logger.give('figures', {'a/b': 1.0}, 0); time.sleep(1000)"
    )
    host = subprocess.Popen([sys.executable, "-c", program, str(tmp_path)], stdout=subprocess.PIPE, text=True)
    assert host.stdout is not None
    pid = int(host.stdout.readline())
    host.send_signal(signal.SIGKILL)
    host.wait()
    host.stdout.close()
    deadline = time.monotonic() + 30
    while _is_alive(pid) and time.monotonic() < deadline:
        time.sleep(0.1)
    assert not _is_alive(pid)


def test_an_unknown_logger_is_refused_with_the_nearest() -> None:
    settings = configuration.load("config/multimachine", "host", ["dry_run=true", "loggers=[mlfow]"])
    with pytest.raises(SettingsError, match=r"loggers: there is no 'mlfow'; did you mean 'mlflow'\?"):
        refuse_contradictions(settings)


def test_a_missing_package_names_the_extra(monkeypatch: pytest.MonkeyPatch) -> None:
    settings = configuration.load("config/multimachine", "host", ["dry_run=true", "loggers=[trackio]"])
    monkeypatch.setattr("digirl_dist.assembly.validate.find_spec", lambda name: None)
    with pytest.raises(SettingsError, match=r"pip install 'digirl_dist\[trackio\]'"):
        refuse_contradictions(settings)


def _is_alive(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except OSError:
        return False
