"""What is reported of rounds: in ``metrics.jsonl`` and ``evaluation.jsonl``, and to people."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from run_files import lines
from small_run import episode

from digirl_dist.collect.offline import OfflineCollector
from digirl_dist.collection import CollectionResult
from digirl_dist.host import Evaluator
from digirl_dist.plain_text import one_line
from digirl_dist.report.follower import Followers
from digirl_dist.report.media import Media
from digirl_dist.report.output import Lines
from digirl_dist.report.progress import Progress
from digirl_dist.report.report import Report
from digirl_dist.storage import strict_json
from digirl_dist.storage.checkpoint import Checkpoint, Checkpoints
from digirl_dist.storage.disk_full import FailFast
from digirl_dist.storage.events import Events
from digirl_dist.storage.run_folder import RunFolder
from digirl_dist.storage.status import Status
from digirl_dist.storage.trajectory_store import Store
from digirl_dist.tasks import Plan, Round, Task, Ticket
from digirl_dist.trainer import Update
from digirl_dist.trajectory import Observation, Step, Trajectory


@pytest.fixture
def folder(tmp_path: Path) -> Iterator[RunFolder]:
    with RunFolder(tmp_path / "run", "") as found:
        yield found


def report_of(folder: RunFolder, tells_success: bool = True, media: str = "none") -> Report:
    events, progress = Events(folder.events), Progress(Status(), Lines(None))
    progress.tells_success = tells_success
    log = Followers((), folder.root, lambda name, reason: None)
    return Report(folder, events, progress, log, Media(folder.media, media, events), FailFast())


STEP = Step(Observation(), 0, -0.5, 1.0, True, False)


def episodes(version: int, successes: Sequence[bool]) -> list[Trajectory]:
    return [
        Trajectory(Ticket(0, index, Task("a"), 0, version), "e", "w", 0, [STEP], Observation(), success)
        for index, success in enumerate(successes)
    ]


def test_a_measurement_has_no_figures_of_policies_that_lag_behind(folder: RunFolder) -> None:
    """Its rounds count from 0 on, whichever checkpoint they measure."""
    result, checkpoint = CollectionResult(0, episodes(14, [True, False])), Checkpoint(Path(), 14, {})
    for _ in range(2):
        report_of(folder).evaluation(result, checkpoint)
    (line,) = lines(folder.evaluations)
    assert (line["checkpoint"], line["policy_version"], line["success_rate"]) == (14, 14, 0.5)
    assert not [name for name in line if name.startswith("staleness")]
    of_an_earlier_version = {**line, "staleness_mean": -14.0}
    folder.evaluations.write_text(strict_json.dumps(of_an_earlier_version) + "\n")
    report_of(folder).evaluation(result, checkpoint)
    assert lines(folder.evaluations) == [of_an_earlier_version], "the same measurement has one line"


def test_a_measurement_that_is_reported_again_films_nothing_again(folder: RunFolder) -> None:
    result = CollectionResult(1, [episode(1, 0, True)], purpose="evaluate")
    for _ in range(2):
        report = report_of(folder, media="all")
        report.evaluation(result, Checkpoint(Path(), 1, {}))
        report.close()
    assert len(lines(folder.media / "index.jsonl")) == 1


def test_a_measurement_tells_what_its_judge_cost(folder: RunFolder) -> None:
    """What a judge cost is told once, and metrics.jsonl has the training's alone."""
    result, cost = CollectionResult(1, episodes(1, [True, False]), purpose="evaluate"), {"judge_usd": 0.25}
    report_of(folder).evaluation(replace(result, judging=cost), Checkpoint(Path(), 1, {}))
    report_of(folder).evaluation(result, Checkpoint(Path(), 1, {}))  # its episodes were stored before
    assert [line["judge_usd"] for line in lines(folder.evaluations)] == [0.25]


def test_checkpoints_compare_by_one_figure_through_all_of_a_run(folder: RunFolder) -> None:
    """By success in one measurement and by reward in another, the one with the larger unit would be the best."""
    report = report_of(folder, tells_success=False)
    checkpoint = Checkpoint(Path(), 1, {})
    for successes in ([True, True], [True, False]):
        assert report.evaluation(CollectionResult(1, episodes(1, successes)), checkpoint) == (1.0, "reward_mean")
    assert [line["success_rate"] for line in lines(folder.evaluations)] == [None, 0.5]
    assert report.rating(checkpoint) is None, "only measurements while training choose the best"
    found = report_of(folder).evaluation(CollectionResult(2, episodes(1, [True, False])), checkpoint)
    assert found == (0.5, "success_rate")


def test_a_checkpoint_whose_measurement_a_crash_left_unrated_is_rated_by_the_next_start(folder: RunFolder) -> None:
    checkpoints, store = Checkpoints(folder.checkpoints), Store(folder.trajectories)
    checkpoint = checkpoints.save(0, {}, {}, {})
    result = CollectionResult(0, episodes(0, [True, False]), purpose="evaluate")
    report_of(folder).evaluation(result, checkpoint)
    plan = Plan([Task("a")], 2, seed=0)
    evaluator = Evaluator(OfflineCollector(), plan, store, checkpoints, report_of(folder), every=1, last=3)
    evaluator.look_at(checkpoint)
    best = checkpoints.best()
    assert best is not None and best.iteration == 0
    assert len(lines(folder.evaluations)) == 1, "it was not measured again"


def test_what_checkpoints_left_that_are_gone_is_kept_aside_and_what_a_crash_left_counts(folder: RunFolder) -> None:
    store, checkpoint, before = Store(folder.trajectories), Checkpoint(Path(), 1, {}), report_of(folder)
    for version in range(4):
        store.append(CollectionResult(version, episodes(version, [True])))
        measured = CollectionResult(version, episodes(version, [True]), purpose="evaluate")
        store.append(measured)
        before.evaluation(measured, replace(checkpoint, iteration=version))
    (folder.trajectories / "000003.parquet").unlink()
    for number, version in ((3, 1), (4, 3)):
        store.land(Round(number), episodes(version, [True])[0])
    whole = folder.evaluations.read_text()
    report = report_of(folder)
    for _ in range(2):  # the second finds nothing more
        store = Store(folder.trajectories)
        report.resumed(checkpoint, store, 4)
        assert [store.has(Round(number)) for number in range(4)] == [True, True, False, False]
        assert [store.has(Round(version, "evaluate")) for version in range(4)] == [True, True, False, False]
        assert store.unfinished() == [3], "what acted with a checkpoint that is there"
        rated = [report.rating(replace(checkpoint, iteration=version)) is not None for version in range(4)]
        assert rated == [True, True, False, False]
    (kept,) = (folder.trajectories / ".landing" / "aside").iterdir()
    found = {str(path.relative_to(kept)) for path in kept.rglob("*.*") if path.is_file()}
    evaluated = {f"evaluation/00000{version}/training.parquet" for version in (2, 3)}
    landed = "trajectories/.landing/000004/000000-00000.episode"
    assert found == {"trajectories/000002.parquet", landed, *evaluated}
    (copy,) = folder.root.glob("evaluation.*.jsonl")
    assert copy.read_text() == whole


def test_groups_whose_seed_is_ignored_are_reported_once(folder: RunFolder) -> None:
    report, checkpoint = report_of(folder), Checkpoint(Path(), 0, {})
    for iteration in range(2):
        starts = [Observation(vector=np.full(1, number, np.float32)) for number in range(2)]
        found = [
            replace(each, steps=[replace(each.steps[0], observation=start)])
            for each, start in zip(episodes(0, [True, False]), starts, strict=True)
        ]
        report.iteration(CollectionResult(iteration, found), Update(checkpoint, {}, 0.0, 0.0))
    told = [line for line in lines(folder.events) if line["event"] == "starts_differ"]
    assert len(told) == 1 and told[0]["task"] == "a" and told[0]["reason"].startswith("two episodes of seed 0 started")


@pytest.mark.parametrize(("unread", "mismatch"), [(1, 0.04), (5, 0.04), (1, 0.06)])
def test_answers_that_were_no_action_are_counted_and_many_are_reported_with_an_example(
    folder: RunFolder, unread: int, mismatch: float
) -> None:
    """So is a policy that acts with other probabilities than the one that learns."""
    report, found = report_of(folder), episodes(0, [False] * 10)
    for each in found[:unread]:
        why = {"type": "wait", "said": "hm", "unread": "'hm' names no action\x1b[2J"}
        each.steps[:] = [replace(each.steps[0], action=why)]  # type: ignore[index]
    report.iteration(CollectionResult(0, found), Update(Checkpoint(Path(), 0, {}), {"mismatch": mismatch}, 0.0, 0.0))
    assert lines(folder.metrics)[0]["unread_answers"] == unread
    told = [line for line in lines(folder.events) if line["event"] in ("answers_unread", "mismatch")]
    assert [line["event"] for line in told] == ["answers_unread"] * (unread > 2) + ["mismatch"] * (mismatch > 0.05)
    assert unread < 2 or (told[0]["answers"], told[0]["such_as"]) == (5, one_line("'hm' names no action\x1b[2J"))
