"""The page of learning results says what the runs came to, and what is missing."""

from __future__ import annotations

import json
import time
from dataclasses import replace
from pathlib import Path

import pytest

from benchmarks.results.page import Section, draw, table, write
from benchmarks.results.plan import Group, Run, Series, groups, measurements_of, runs_of, shortened
from benchmarks.results.reading import found, read
from digirl_dist.assembly.validate import refuse_contradictions
from digirl_dist.settings.configuration import Source

pytestmark = pytest.mark.long_file(15)

FAST = Series("fast", 3, 10, ())
SLOW = Series("slow", 2, 10, (), offline=1)
GROUP = Group("race", "A race", "Who is first?", (FAST, SLOW))


def record(run: Run, rates: list[float | None]) -> None:
    """Leaves the metrics of a run; None is an iteration that learned offline."""
    run.folder.mkdir(parents=True)
    lines = [
        {"iteration": number, "episodes": 0 if rate is None else 10, "success_rate": rate, "iteration_s": 30.0,
         "success_by_task": {"a": [1, 5], f"b{number}": [number // 2, 5]},
         "time": time.mktime((2026, 5, 4, 12, 0, 0, 0, 0, -1))}
        for number, rate in enumerate(rates)
    ]  # fmt: skip
    (run.folder / "metrics.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))


@pytest.fixture
def section(tmp_path: Path) -> Section:
    runs = runs_of(GROUP, [0, 1], tmp_path)
    rates = {("fast", 0): [0.2, 0.6, 1.0], ("fast", 1): [0.0, 0.4, 0.8], ("slow", 0): [None, 0.1, 0.3]}
    for run in runs:
        if (run.series.name, run.seed) in rates:
            record(run, rates[run.series.name, run.seed])
    return Section(GROUP, found(GROUP, runs))


def test_the_table_has_means_over_seeds_with_their_spread(section: Section) -> None:
    fast, slow = table(section).splitlines()[2:]
    assert fast == "| fast | 0, 1 | 30 | 0.10 ± 0.10 | 0.70 ± 0.10 | 0.50 ± 0.10 | 1.5 | 2026-05-04 | – |"
    assert slow == "| slow | 0 | 20 | 0.10 | 0.20 | 0.20 | 1.5 | 2026-05-04 | – |"


def test_the_page_shows_the_curves_and_names_what_is_not_finished(section: Section, tmp_path: Path) -> None:
    write(tmp_path, [section, Section(GROUP, [])], "script/results", "Quietly.")
    page = (tmp_path / "results.md").read_text()
    assert "Not finished: `slow` (seed 1)." in page and "Quietly." in page
    assert "![A race](results/race.png)" in page
    assert (tmp_path / "results" / "race.png").read_bytes().startswith(b"\x89PNG")


def test_a_measured_run_says_what_its_last_policy_does_where_it_never_was_and_by_which_commit(tmp_path: Path) -> None:
    group = Group("race", "A race", "Who is first?", (Series("fast", 3, 10, (), measured=4),))
    runs = runs_of(group, [0, 1], tmp_path)
    for run, commits in zip(runs, ("0123456789abcdef", None), strict=True):
        record(run, [0.2, 0.6, 1.0])
        if commits:
            start = {"package": {"commit": commits, "uncommitted": "diff"}}
            (run.folder / "provenance.jsonl").write_text(json.dumps(start) + "\n")
    for rate, one in zip((0.5, 0.25), measurements_of(runs[0]), strict=True):
        one.folder.mkdir()
        (one.folder / "evaluation.jsonl").write_text(json.dumps({"success_rate": rate}) + "\n")
    head, _, line = table(Section(group, found(group, runs))).splitlines()
    assert head.endswith("| commit | tasks solved | training wording | test split |")
    assert line.endswith("| 0123456789+, – | 2 2 | 0.50 (0.50) | 0.25 (0.25) |")


def test_a_section_of_which_no_run_is_here_stays_as_it_is(section: Section, tmp_path: Path) -> None:
    write(tmp_path, [section], "script/results")
    empty = Section(GROUP, found(GROUP, runs_of(GROUP, [0], tmp_path / "elsewhere")))
    before = (tmp_path / "results.md").read_text()
    write(tmp_path, [empty], "script/results")
    assert (tmp_path / "results.md").read_text() == before


def test_what_was_written_before_the_first_section_stays_until_a_note_takes_its_place(
    section: Section, tmp_path: Path
) -> None:
    told = tmp_path / "results.md"
    write(tmp_path, [section], "script/results", note="**What the rows say.** Much.\n\n- And more.")
    first = told.read_text()
    write(tmp_path, [section], "script/results")
    assert told.read_text() == first and "**What the rows say.** Much.\n\n- And more.\n\n## " in first
    write(tmp_path, [section], "script/results", note="Little.")
    assert "Much" not in told.read_text() and "\nLittle.\n\n## " in told.read_text()


def test_nothing_is_drawn_of_nothing(tmp_path: Path) -> None:
    assert not draw(Section(GROUP, found(GROUP, runs_of(GROUP, [0], tmp_path))), tmp_path / "x.png")


def test_a_run_that_stopped_early_does_not_count_as_finished(tmp_path: Path) -> None:
    [run, _] = runs_of(GROUP, [0], tmp_path)
    record(run, [0.5, 0.5])
    curve = read(run)
    assert curve is not None and not curve.finished
    assert (curve.learned, curve.episodes) == ([0, 10], 20)


@pytest.mark.nightly
@pytest.mark.component
def test_every_planned_run_composes_and_only_equal_ones_share_a_folder(tmp_path: Path) -> None:
    planned = [run for group in groups(tmp_path) for run in runs_of(group, [0, 1, 2], tmp_path)]
    assert len({run.folder for run in planned}) == len({tuple(run.overrides()) for run in planned}) < len(planned)
    for run in (run for group in groups(tmp_path) for run in runs_of(shortened(group), [0], tmp_path)):
        settings = Source("config/multimachine", "host", tuple(run.overrides())).load()
        offline = settings.offline.iterations if settings.offline.data else 0
        assert (settings.train_iterations - offline, settings.rollout_size) == (4, 16)
        assert settings.save_path == str(run.folder)
        for one in measurements_of(run):
            measuring = Source("config/multimachine", "eval", tuple(one.overrides())).load()
            assert (measuring.rollout_size, measuring.task_split.value) == (8, one.split)
            assert (measuring.start_from, measuring.save_path) == (str(run.folder), str(one.folder))
            refuse_contradictions(replace(measuring, start_from=None))  # of a run that is not there yet


def test_runs_that_go_on_from_others_begin_with_the_policy_of_their_seed(tmp_path: Path) -> None:
    [run] = runs_of(Group("g", "", "", (Series("s", 1, 1, (), after=tmp_path / "a"),)), [7], tmp_path)
    assert f"start_from={tmp_path / 'a' / 'seed-7'}" in run.overrides()
