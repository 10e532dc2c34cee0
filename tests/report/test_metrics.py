"""Lines of figures, and what they say."""

from __future__ import annotations

import json
import math
import os
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from digirl_dist.collection import CollectionResult, WorkerResult
from digirl_dist.errors import RunFolderError
from digirl_dist.report import metrics
from digirl_dist.report.metrics import Metrics, Outcomes, collection, lines_of, overhead_s, results, wilson
from digirl_dist.storage.checkpoint import Checkpoint
from digirl_dist.tasks import Task, Ticket
from digirl_dist.trainer import Update
from digirl_dist.trajectory import Observation, Step, Trajectory


def episode(task: str, success: bool, log_probs: list[float]) -> Trajectory:
    steps = [Step(Observation(), 0, log_prob, 0.0, False, False) for log_prob in log_probs]
    return Trajectory(Ticket(0, 0, Task(task), 0, 0), "e", "w", 0, steps, Observation(), success)


def test_the_entropy_is_estimated_from_the_steps_and_success_counted_by_task() -> None:
    """Of a policy with probabilities 0.1, 0.2 and 0.7, in expectation over its own actions."""
    probabilities = np.array([0.1, 0.2, 0.7])
    drawn = np.log(np.repeat(probabilities, [100, 200, 700])).tolist()
    found = results(0, [episode("a", True, drawn), episode("a", False, [math.nan]), episode("b", False, [])])
    assert found["entropy"] == pytest.approx(-(probabilities * np.log(probabilities)).sum())
    assert found["success_by_task"] == {"a": [1, 2], "b": [0, 1]}
    assert results(0, [episode("a", True, [math.nan])])["entropy"] is None


def test_episodes_by_worker_are_all_of_the_iteration_after_a_resume_too() -> None:
    """The first of them landed before this process started, from a worker that has gone."""
    landed = [replace(episode("a", True, []), worker=name) for name in ("w0", "w1", "w1")]
    figures = collection(CollectionResult(0, landed, [WorkerResult("w1"), WorkerResult("w2")]))
    assert figures["episodes_by_worker"] == {"w0": 1, "w1": 2, "w2": 0}


def test_success_that_nobody_tells_is_reported_once_it_tells_episodes_apart(tmp_path: Path) -> None:
    alike, other = [episode("a", True, []), episode("b", True, [])], [episode("a", False, [])]
    outcomes, rates = Outcomes(told=False), []
    for each in (alike, other, alike):
        rates.append(outcomes.checked(results(0, each), each)["success_rate"])
    assert rates == [None, 0.0, 1.0]
    assert Outcomes(told=True).checked(results(0, alike), alike)["success_rate"] == 1.0
    (tmp_path / "metrics.jsonl").write_text('{"iteration": 0, "success_rate": 0.5}\n')
    assert Outcomes(told=False, metrics=Metrics(tmp_path / "metrics.jsonl")).mean_something


def test_a_file_that_needs_no_mending_is_left_as_it_is(tmp_path: Path) -> None:
    path = tmp_path / "metrics.jsonl"
    path.write_text('{"iteration": 0}\n{"iteration": 1}\n{"iteration": 2}\n')
    before = path.stat()
    Metrics(path).keep_until(3)
    assert (path.stat().st_ino, path.stat().st_mtime_ns) == (before.st_ino, before.st_mtime_ns)
    Metrics(path).keep_until(2)
    assert [line["iteration"] for line in Metrics(path).lines] == [0, 1]
    with path.open("a") as file:
        file.write('{"iteration": 2, "cut')
    Metrics(path).keep_until(2)
    assert path.read_text().endswith("}\n")


def test_a_line_that_a_crash_cut_off_takes_no_other_with_it(tmp_path: Path) -> None:
    """No checkpoint says how many evaluations there were, so that nothing else mends their file."""
    path = tmp_path / "evaluation.jsonl"
    for _ in range(2):
        Metrics(path).append({"iteration": 7, "success_rate": 0.5})
    path.write_bytes(path.read_bytes()[:-9])
    Metrics(path).append({"iteration": 14, "success_rate": 0.7})
    assert [line["iteration"] for line in Metrics(path).lines] == [7, 14]


def test_a_file_of_more_than_128_mib_is_read_whole_and_one_that_no_run_writes_is_refused(tmp_path: Path) -> None:
    """It was cut at 128 MiB, and what lay behind was written again at each start."""
    path = tmp_path / "metrics.jsonl"
    with path.open("w") as file:
        file.writelines(f'{{"iteration": {number}, "said": "{"x" * (1 << 20)}"}}\n' for number in range(140))
    Metrics(path).keep_until(140)
    assert Metrics(path).iterations == [line["iteration"] for line in lines_of(path)] == [*range(140)]
    for read in (Metrics, lines_of):
        os.truncate(path, 0)
        os.truncate(path, (1 << 30) + 1)
        with pytest.raises(RunFolderError, match="or 1,073,741,824 bytes: move it away"):
            read(path)


def test_no_iteration_of_a_long_run_is_left_out(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "metrics.jsonl"
    seconds = dict.fromkeys("abcdefgh", 123.4567)
    with path.open("w") as file:
        for number in range(3000):
            line = {"iteration": number, "slot_seconds_by_worker": dict.fromkeys(map(str, range(64)), seconds)}
            file.write(json.dumps(line) + "\n")
    assert [line["iteration"] for line in lines_of(path)] == [*range(3000)]
    monkeypatch.setattr(metrics, "_MOST_MEMORY", 10**6)
    with pytest.raises(RunFolderError, match="figures for more than 1,000,000 bytes: read them line by line"):
        lines_of(path)


@pytest.mark.parametrize(("measured_s", "expected"), [(0.0, 11.0), (8.0, 3.0), (12.0, 1.0)])
def test_an_evaluation_between_update_and_collection_is_no_overhead(measured_s: float, expected: float) -> None:
    before = Update(Checkpoint(Path(), 1, {}), learned_at=10.0)
    result = CollectionResult(1, (), acting_at=20.0, last_ended_at=30.0, stored_at=31.0)
    assert overhead_s(result, before, measured_s) == expected


@given(st.integers(1, 500).flatmap(lambda trials: st.tuples(st.integers(0, trials), st.just(trials))))
def test_the_bounds_are_where_the_score_test_just_rejects(drawn: tuple[int, int]) -> None:
    """Wilson's bounds solve (share - p)^2 = z^2 p (1 - p) / n."""
    successes, trials = drawn
    for bound in wilson(successes, trials):
        score = abs(successes / trials - bound)
        assert score == pytest.approx(1.959963984540054 * math.sqrt(bound * (1 - bound) / trials), abs=1e-6)


def test_nothing_measured_says_nothing() -> None:
    assert wilson(0, 0) == (0.0, 1.0)
