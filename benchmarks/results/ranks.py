"""Steps to a threshold on 1, 2 and 4 ranks: does a run learn alike, however many ranks share it?"""

from __future__ import annotations

import json
import statistics
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from matplotlib.figure import Figure

NAME = "ranks"
TITLE = "On several ranks"
_ROOT = Path(__file__).resolve().parents[2]
_WORLDS = (1, 2, 4)
_BSIZE, _STEPS, _BATCH = 8, 128, 64
"""Emulators, steps of each in an iteration, and rows of a minibatch: of one rank alone."""
_WINDOW = 5 * _BSIZE * _STEPS
"""Global steps over whose episodes a mean return is taken."""
_TEXT = f"""\
`digirl_dist.train` with PPO on 1, 2 and 4 ranks, for the same number of global steps (steps of all emulators together).

- *Divided*: `bsize` ({_BSIZE}) and `algorithm.ppo.batch_size` ({_BATCH}) are divided by the number of ranks; the
  learning rate stays. An iteration then has the same number of emulators, steps, minibatches, and rows in each
  minibatch on any number of ranks.
- *Unchanged*: each rank keeps both. A minibatch then has the rows of all ranks, so the same steps make fewer updates.
- `steps`: thousands of global steps until the mean return of the episodes that ended within the last {_WINDOW} steps
  reached the threshold; mean over seeds ± standard deviation.
- `end`: that mean return at the end of the run.

With more emulators, episodes that start together end later in global steps.
"""


@dataclass(frozen=True)
class Problem:
    """An environment, and the mean return that counts as learned."""

    name: str
    threshold: float
    iterations: int
    """Of one rank alone."""
    overrides: tuple[str, ...] = ()


PROBLEMS = (
    Problem("CartPole-v1", 300.0, 40),
    Problem("Pendulum-v1", -300.0, 80, ("algorithm.ppo.discount=0.9", "algorithm.ppo.epochs=10")),
)


@dataclass(frozen=True)
class RankRun:
    """One run on ``world`` ranks."""

    problem: Problem
    world: int
    divided: bool
    seed: int
    root: Path

    @property
    def folder(self) -> Path:
        form = "divided" if self.divided else "unchanged"
        return self.root / NAME / self.problem.name / form / f"{self.world}" / f"seed-{self.seed}"

    @property
    def iterations(self) -> int:
        return self.problem.iterations if self.divided else self.problem.iterations // self.world

    def command(self) -> list[str]:
        """The ordinary entry, under the launcher where there are several ranks."""
        parts = self.world if self.divided else 1
        launcher = ["-m", "digirl_dist.parallel.launch", f"--nproc_per_node={self.world}"] if self.world > 1 else []
        return [
            *(sys.executable, *launcher, "-m", "digirl_dist.train", "--config-name", "ranks"),
            *(["--distributed"] if self.world > 1 else []),
            f"emulator.id={self.problem.name}",
            f"bsize={_BSIZE // parts}",
            f"distributed.steps={_STEPS}",
            f"algorithm.ppo.batch_size={_BATCH // parts}",
            "distributed.eval_freq=0",
            "keep_checkpoints=1",
            f"train_iterations={self.iterations}",
            f"seed={100 * self.seed}",  # rank k adds k
            f"save_path={self.folder}",
            *self.problem.overrides,
        ]

    def curve(self) -> Curve | None:
        """None if the run is not finished."""
        path = self.folder / "metrics.jsonl"
        lines = [json.loads(line) for line in path.read_text().splitlines()] if path.exists() else []
        return _smoothed(lines) if len(lines) >= self.iterations else None


@dataclass(frozen=True)
class Curve:
    """Mean returns of the episodes that ended lately, by global step; None before the first of them."""

    steps: list[int]
    returns: list[float | None]

    def reached(self, threshold: float) -> int | None:
        """The global step at which the mean return was first as good, None if it never was."""
        pairs = zip(self.steps, self.returns, strict=True)
        return next((step for step, mean in pairs if mean is not None and mean >= threshold), None)


def rank_runs(root: Path, seeds: Sequence[int]) -> list[RankRun]:
    """All of them, seed after seed; on one rank both forms are the same."""
    return [
        RankRun(problem, world, divided, seed, root)
        for seed in seeds
        for problem in PROBLEMS
        for divided in (True, False)
        for world in _WORLDS
        if divided or world > 1
    ]


def finish(runs: Sequence[RankRun]) -> int:
    """Makes the runs that are not finished; returns how many failed."""
    failed = 0
    for number, run in enumerate(runs, 1):
        if run.curve() is None:
            print(f"== {number}/{len(runs)} {time.strftime('%H:%M:%S')} {run.folder}", flush=True)
            run.folder.mkdir(parents=True, exist_ok=True)
            with (run.folder / "output.log").open("ab") as log:
                failed += bool(subprocess.run(run.command(), cwd=_ROOT, stdout=log, stderr=log).returncode)
    return failed


def section(root: Path, seeds: Sequence[int], folder: Path) -> str:
    """The part of results.md, with its picture in ``folder/results``; empty without finished runs."""
    found = {run: curve for run in rank_runs(root, seeds) if (curve := run.curve()) is not None}
    if not found:
        return ""
    draw(found, folder / "results" / f"{NAME}.png")
    head = (
        "| environment | threshold | settings | ranks | seeds | steps | of one rank's | end |\n" + "| --- " * 8 + "|\n"
    )
    table = "".join(_line(*each, found) for each in _forms())
    return f"## {TITLE}\n\n{_TEXT}\n{head}{table}\n![{TITLE}](results/{NAME}.png)\n"


def draw(found: dict[RankRun, Curve], path: Path) -> None:
    """A panel for each environment and form of which there are runs, a line for each number of ranks: the mean over
    seeds."""
    forms = [True] if all(run.divided for run in found) else [True, False]
    figure = Figure(figsize=(4.5 * len(forms), 5.5), layout="constrained")
    axes = figure.subplots(len(PROBLEMS), len(forms), squeeze=False)
    for row, problem in enumerate(PROBLEMS):
        for column, divided in enumerate(forms):
            axis = axes[row][column]
            for world in _WORLDS:
                curves = _of(problem, world, divided, found)
                grid = np.arange(_WINDOW, problem.iterations * _BSIZE * _STEPS + 1, _WINDOW)
                means = [np.interp(grid, *_known(curve)) for curve in curves]
                if means:
                    axis.plot(grid / 1000, np.mean(means, axis=0), label=f"{world}")
            axis.axhline(problem.threshold, color="grey", linewidth=0.8, linestyle=":")
            axis.set_title(f"{problem.name}, {'divided' if divided else 'unchanged'}", fontsize=9)
            axis.grid(alpha=0.3)
    axes[0][0].legend(title="ranks", fontsize=8)
    figure.supxlabel("thousands of global steps", fontsize=9)
    figure.supylabel("mean return", fontsize=9)
    figure.savefig(path, dpi=110)


def _forms() -> Iterator[tuple[Problem, bool, int]]:
    for problem in PROBLEMS:
        for divided in (True, False):
            for world in _WORLDS if divided else _WORLDS[1:]:
                yield problem, divided, world


def _of(problem: Problem, world: int, divided: bool, found: dict[RankRun, Curve]) -> list[Curve]:
    form = divided or world == 1
    return [c for run, c in found.items() if (run.problem, run.world, run.divided) == (problem, world, form)]


def _line(problem: Problem, divided: bool, world: int, found: dict[RankRun, Curve]) -> str:
    curves = _of(problem, world, divided, found)
    if not curves:
        return ""
    mine = [curve.reached(problem.threshold) for curve in curves]
    ones = [curve.reached(problem.threshold) for curve in _of(problem, 1, True, found)]
    reached, alone = ([step for step in steps if step is not None] for steps in (mine, ones))
    missed = f" ({len(mine) - len(reached)} never)" if len(reached) < len(mine) else ""
    ratio = f"{statistics.fmean(reached) / statistics.fmean(alone):.2f}" if reached and alone else "-"
    ends = [curve.returns[-1] for curve in curves if curve.returns[-1] is not None]
    form = "divided" if divided else "unchanged"
    told = (
        form,
        str(world),
        str(len(curves)),
        _spread([step / 1000 for step in reached]) + missed,
        ratio,
        _spread(ends),
    )
    return f"| {problem.name} | {problem.threshold:g} | {' | '.join(told)} |\n"


def _spread(values: Sequence[float]) -> str:
    return f"{statistics.fmean(values):.0f} ± {statistics.pstdev(values):.0f}" if values else "-"


def _known(curve: Curve) -> tuple[list[int], list[float]]:
    pairs = [(s, mean) for s, mean in zip(curve.steps, curve.returns, strict=True) if mean is not None]
    return [step for step, _ in pairs], [mean for _, mean in pairs]


def _smoothed(lines: Sequence[dict[str, float]]) -> Curve:
    steps = [int(line["global_step"]) for line in lines]
    means: list[float | None] = []
    for now in steps:
        recent = [line for line in lines if now - _WINDOW < line["global_step"] <= now and line["episodes"]]
        count = sum(line["episodes"] for line in recent)
        means.append(sum(line["reward_mean"] * line["episodes"] for line in recent) / count if count else None)
    return Curve(steps, means)
