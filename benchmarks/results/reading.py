"""What finished and unfinished runs came to, from their ``metrics.jsonl``."""

from __future__ import annotations

import json
import statistics
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import date
from itertools import accumulate
from pathlib import Path
from typing import Any

from benchmarks.results.plan import Group, Measurement, Run, Series, measurements_of

_LAST = 2
"""Iterations at the end of a run whose episodes together say how it ended."""


@dataclass(frozen=True)
class Curve:
    """One run: success rates of its iterations, and how many of its own episodes had been learned from before each.

    Iterations that learned offline ran none and are left out.
    """

    learned: list[int]
    success: list[float]
    episodes: int
    elapsed: list[float]
    """Seconds of wall-clock up to the end of each of them, without those that learned offline."""
    seconds: float
    day: date
    finished: bool
    solved: int
    """Tasks that succeeded at least once."""
    measured: dict[str, float]
    """Success of the last policy in each split that was measured."""
    commit: str
    """That the run began with, ten digits; ``+`` if files differed from it."""

    @property
    def start(self) -> float:
        """Of the untrained policy, or of the one that learned offline."""
        return self.success[0]

    @property
    def end(self) -> float:
        return statistics.fmean(self.success[-_LAST:])

    @property
    def mean(self) -> float:
        """Over the whole run: higher where learning was quicker."""
        return statistics.fmean(self.success)


@dataclass(frozen=True)
class Found:
    """The finished runs of a series by seed, and the seeds that are missing."""

    series: Series
    curves: dict[int, Curve]
    missing: list[int]


def read(run: Run) -> Curve | None:
    """None if the run has no episodes yet."""
    lines = lines_of(run.folder / "metrics.jsonl")
    acted = [line for line in lines if line["episodes"]]
    if not acted:
        return None
    totals = list(accumulate((line["episodes"] for line in acted), initial=0))
    return Curve(
        totals[:-1],
        [line["success_rate"] for line in acted],
        totals[-1],
        list(accumulate(line["iteration_s"] for line in acted)),
        sum(line["iteration_s"] for line in lines),
        date.fromtimestamp(lines[-1]["time"]),
        finished=len(lines) >= run.series.updates,
        solved=len({task for line in acted for task, (won, _) in line.get("success_by_task", {}).items() if won}),
        measured={one.split: rate for one in measurements_of(run) if (rate := measured(one)) is not None},
        commit=_commit(run.folder),
    )


def measured(one: Measurement) -> float | None:
    """The success rate of a finished measurement."""
    lines = lines_of(one.folder / "evaluation.jsonl")
    return float(lines[-1]["success_rate"]) if lines else None


def _commit(folder: Path) -> str:
    for line in lines_of(folder / "provenance.jsonl")[:1]:
        package = line["package"]
        return str(package["commit"])[:10] + ("+" if package["uncommitted"] else "")
    return "–"


def lines_of(path: Path) -> list[dict[str, Any]]:
    """Returns the objects of a file with one on each line; none if it is not there."""
    return [json.loads(line) for line in path.read_text().splitlines()] if path.exists() else []


def found(group: Group, runs: Sequence[Run]) -> list[Found]:
    """Of each series of the group, what there is."""
    return [_of(series, [run for run in runs if run.series == series]) for series in group.series]


def _of(series: Series, runs: Sequence[Run]) -> Found:
    curves = {run.seed: read(run) for run in runs}
    done = {seed: curve for seed, curve in curves.items() if curve is not None and curve.finished}
    return Found(series, done, [seed for seed in curves if seed not in done])
