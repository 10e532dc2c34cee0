"""The board of all pages: what counts as solved, what is made, and what its page says."""

from __future__ import annotations

import json
import time
from pathlib import Path

import pytest

from benchmarks.results import pages, reasons
from benchmarks.results.plan import Run
from benchmarks.results.reading import lines_of
from digirl_dist.assembly.validate import refuse_contradictions
from digirl_dist.emulator.miniwob import miniwob_tasks
from digirl_dist.settings.configuration import Source


@pytest.mark.parametrize(
    ("success", "solved"),
    [([], None), ([1.0], None), ([0.5, 1.0, 0.9], 3), ([0.95, 0.85], 2), ([0.0, 1.0, 0.7], None), ([0.9, 0.89], None)],
)
def test_a_page_is_solved_where_the_mean_of_two_iterations_is_high(success: list[float], solved: int | None) -> None:
    assert pages.solved_at(success) == solved


def test_a_run_without_any_success_ends_at_half() -> None:
    assert pages.ended_at([0.0] * 8) is None and pages.ended_at([0.0] * 9) == 9
    assert pages.ended_at([0.0] * 8 + [0.1] + [0.0] * 9) is None


def _finished(run: Run, rates: list[float]) -> None:
    run.folder.mkdir(parents=True)
    lines = [
        {
            "episodes": 64,
            "success_rate": rate,
            "iteration_s": 30.0,
            "time": time.mktime((2026, 5, 4, 12, 0, 0, 0, 0, -1)),
        }
        for rate in rates
    ]
    (run.folder / "metrics.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))


def test_a_run_that_is_over_leaves_one_line_and_no_folder(tmp_path: Path) -> None:
    solved, unsolved, failed = (
        pages._run(page, 0, None, tmp_path) for page in ("click-test", "draw-line", "click-tab")
    )
    for run, rates in ((solved, [0.5, 0.9, 1.0, 0.2]), (unsolved, [0.0] * 18), (failed, [0.0] * 3)):
        _finished(run, rates)
    noted = [pages._noted(run, pages.read(run), tmp_path / "pages.jsonl") for run in (solved, unsolved, failed)]
    assert noted == [True, True, False]
    assert [run.folder.exists() for run in (solved, unsolved, failed)] == [False, False, True], "that one can go on"
    first, second = lines_of(tmp_path / "pages.jsonl")
    assert (first["episodes"], first["solved"], first["success"]) == (192, True, [0.5, 0.9, 1.0])
    assert (second["episodes"], second["solved"]) == (576, False)


def test_only_pages_without_a_line_are_run_and_the_page_says_what_they_came_to(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    made: list[str] = []

    def make(runs: list[Run], processes: int, lines: Path) -> int:
        for run in runs:
            made.append(run.series.name)
            _finished(run, [0.0, 0.95, 0.95] if run.series.name == "click-tab" else [0.0, 0.25] + [0.0] * 16)
            assert pages._noted(run, pages.read(run), lines)
        return 0

    monkeypatch.setattr(pages, "_make", make)
    monkeypatch.setattr(pages.os, "nice", lambda by: 0)
    monkeypatch.setattr(pages.signal, "signal", lambda *_: None)
    options = ["--out", str(tmp_path), "--runs", str(tmp_path / "runs"), "--pages"]
    (tmp_path / "results").mkdir()
    for wanted in ("click-tab", "click-tab,draw-line"):
        assert pages.main([*options, wanted]) == 0
    assert made == ["click-tab", "draw-line"]
    page = (tmp_path / "pages.md").read_text()
    assert "**1 of 2 pages solved** (0 of them were before learning); 123 pages not run yet." in page
    assert "| click-tab | 192 | 0.00 | 0.95 |" in page
    assert "in 16 of 1152 episodes | a curved or free line must be drawn |" in page and "Without" not in page
    for more in (["--seeds", "0,1", "--learned"], ["--learned", "--first", "1", "--without", "labels"]):
        assert pages.main([*options, "click-tab,draw-line", *more]) == 0
    assert made[2:] == ["click-tab", "click-tab"]
    page = (tmp_path / "pages.md").read_text()
    assert "| click-tab | 192 | 192 |\n| solved | **1 of 1** | **1 of 1** |" in page
    assert "| labels | `agent.labels=false` | 1 | 1, 192 | 1, 192 |" in page and "**1 of 2 pages solved**" in page
    assert (tmp_path / "results" / "pages.png").read_bytes().startswith(b"\x89PNG")


def test_a_run_is_a_valid_configuration_of_the_shipped_defaults(tmp_path: Path) -> None:
    settings = Source(
        "config/multimachine", "host", tuple(pages._run("click-test", 3, "labels", tmp_path).overrides())
    ).load()
    refuse_contradictions(settings)
    assert (
        settings.seed == 3 and settings.train_iterations * settings.rollout_size == 1152 and not settings.agent.labels
    )


def test_reasons_are_of_pages_that_exist_each_once() -> None:
    named = [page for some in reasons.REASONS.values() for page in some]
    assert len(named) == len(set(named)) and set(named) <= {task.id for task in miniwob_tasks("all")}
