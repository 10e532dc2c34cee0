"""The leaderboard: episodes and minutes that each recipe needs for 0.9 of a task, from scratch. See script/leaderboard.

A finished run is a line of docs/reference/leaderboard.jsonl, with its commit and whole curve; the page shows these.
"""

from __future__ import annotations

import argparse
import json
import statistics
import subprocess
import sys
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

from matplotlib.figure import Figure

from benchmarks.results.plan import Run, Series
from benchmarks.results.reading import read
from benchmarks.results.running import finish

_ROOT = Path(__file__).resolve().parents[2]
_GOAL = 0.9
_PAGES = (
    "click-test", "click-test-2", "click-dialog", "click-color", "focus-text", "focus-text-2", "click-button",
    "click-button-sequence", "enter-text", "enter-text-dynamic", "click-collapsible", "click-dialog-2", "click-tab",
    "click-link",
)  # fmt: skip
TASKS = {
    **{f"phone-{name}": ("emulator=phone", f"task_set={name}") for name in ("default", "easy", "multistep")},
    **{page: ("emulator=miniwob", f"emulator.task={page}") for page in _PAGES},
}
RECIPES = {
    "filtered_bc": ("train_algorithm=filtered_bc",),
    "digirl-paper": ("train_algorithm=digirl",),
    "digirl-code": ("train_algorithm=digirl", "algorithm.digirl.advantage=code"),
    "grpo": ("train_algorithm=grpo",),
    "filtered_bc-pixels": ("train_algorithm=filtered_bc", "agent.labels=false"),
    "grpo-pixels": ("train_algorithm=grpo", "agent.labels=false"),
}
"""The shipped defaults of each algorithm, with nothing set besides; in ``-pixels`` the agent has pictures alone."""

_INTRODUCTION = """\
# Leaderboard

`script/leaderboard` writes this page and makes the runs that are missing. `leaderboard.jsonl` has the curves.

Every run starts from untrained weights and has at most 1,152 episodes (phone: 1,792) of the ordinary entry. It uses the
shipped defaults of its algorithm: no page and no task set has settings of its own. On MiniWoB++ pages the agent reads
the names of what is on the page beside the picture. In the recipes that end with `-pixels` it has the picture alone
(`agent.labels=false`), as it always has on the phone.

| column | meaning |
| --- | --- |
| `reached` | how many seeds reached the goal: a mean success of 0.9 or more over two iterations in a row |
| `episodes`, `minutes` | episodes collected, and wall-clock time, until then; means over the seeds that reached it |
| `end` | mean success of the last two iterations, for each seed |
| `commit` | a `+` means that files differed from the commit |

Success is that of the collecting policy, which still explores, on instances that it has not met before. Other work may
have run on the machine, so minutes say little.

The defaults changed while these rows were made:

- The device agent's convolutions changed on 2026-11-23 (CHANGELOG). The rows of 383cf4a15c, 801cd4bf55 and 2a0d8ee46f
  are older. 2a0d8ee46f+ has the finer second convolution. The other rows also have He's initial weights.
- 609636eee1 became 5b7d174 in a rebase. For cloning, 1b78864c4a+ equals that commit too.
- GRPO's rows precede its `unsolved`. The `-pixels` rows precede `agent.labels`: then there was nothing else (both
  2026-11-24).
- At 666d0a3be6+ only leaderboard.jsonl itself differed from the commit.
- Cloning's rows of 666d0a3be6+ precede taps that are aimed at labels; those of a95b9e2ec4 have them.
"""


@dataclass(frozen=True)
class Row:
    """One finished run."""

    task: str
    recipe: str
    seed: int
    commit: str
    date: str
    episodes: list[int]
    """Collected up to the end of each iteration."""
    success: list[float]
    seconds: list[float]
    """Of wall-clock up to the end of each iteration."""

    @property
    def reached(self) -> int | None:
        """The first iteration that ends with 0.9 over itself and the one before; None if there is none."""
        pairs = zip(self.success, self.success[1:], strict=False)
        return next((number for number, pair in enumerate(pairs, 1) if statistics.fmean(pair) >= _GOAL), None)

    @property
    def end(self) -> float:
        return statistics.fmean(self.success[-2:])


def main(argv: Sequence[str] | None = None) -> int:
    """Returns the exit status: 0, or 1 if a run failed."""
    options = _options(argv)
    path = options.out / "leaderboard.jsonl"
    failed = 0
    for task, recipe, seed in [] if options.page else _wanted(options):
        if any((row.task, row.recipe, row.seed) == (task, recipe, seed) for row in rows(path)):
            continue
        run = run_of(task, recipe, seed, options.runs)
        commit = _commit()
        if finish([run]):
            failed = 1
            continue
        with open(path, "a") as file:
            file.write(json.dumps(asdict(row_of(run, task, recipe, commit))) + "\n")
    write(options.out, rows(path))
    return failed


def recipes_of(task: str) -> list[str]:
    """Returns the recipes that a task can have: the phone shows nothing but pictures."""
    return [name for name in RECIPES if not (task.startswith("phone-") and name.endswith("-pixels"))]


def run_of(task: str, recipe: str, seed: int, root: Path) -> Run:
    """The run behind a row."""
    iterations, episodes = (14, 128) if task.startswith("phone-") else (18, 64)
    series = Series(f"{task}-{recipe}", iterations, episodes, (*TASKS[task], *RECIPES[recipe]))
    return Run(series, seed, root / task / recipe / f"seed-{seed}")


def row_of(run: Run, task: str, recipe: str, commit: str) -> Row:
    """What a finished run came to."""
    curve = read(run)
    assert curve is not None
    episodes = [*curve.learned[1:], curve.episodes]
    return Row(task, recipe, run.seed, commit, curve.day.isoformat(), episodes, curve.success, curve.elapsed)


def rows(path: Path) -> list[Row]:
    """All that there are."""
    return [Row(**json.loads(line)) for line in path.read_text().splitlines()] if path.exists() else []


def write(folder: Path, found: Sequence[Row]) -> None:
    """``leaderboard.md`` and its picture; what was not run is named below the table."""
    (folder / "results").mkdir(parents=True, exist_ok=True)
    parts = [_INTRODUCTION, _table(found), _missing(found)]
    if found:
        draw(found, folder / "results" / "leaderboard.png")
        parts.append("\n![Success over episodes](results/leaderboard.png)\n")
    (folder / "leaderboard.md").write_text("\n".join(parts))


def _table(found: Sequence[Row]) -> str:
    head = "| task | recipe | seeds | reached | episodes | minutes | end | commit | command |\n" + "| --- " * 9 + "|\n"
    return head + "".join(
        _line(task, recipe, found) for task in TASKS for recipe in recipes_of(task) if _of(task, recipe, found)
    )


def _missing(found: Sequence[Row]) -> str:
    """One line for each recipe: the tasks that it was not run on."""
    left = {
        recipe: [task for task in TASKS if recipe in recipes_of(task) and not _of(task, recipe, found)]
        for recipe in RECIPES
    }
    lines = [f"- `{recipe}`: {', '.join(tasks)}" for recipe, tasks in left.items() if tasks]
    return "\n".join(["Not run:\n", *lines, ""]) if lines else ""


def _of(task: str, recipe: str, found: Sequence[Row]) -> list[Row]:
    return sorted((row for row in found if (row.task, row.recipe) == (task, recipe)), key=lambda row: row.seed)


def _line(task: str, recipe: str, found: Sequence[Row]) -> str:
    mine = _of(task, recipe, found)
    there = [(row, row.reached) for row in mine if row.reached is not None]
    episodes = f"{statistics.fmean(row.episodes[at] for row, at in there):.0f}" if there else "–"
    minutes = f"{statistics.fmean(row.seconds[at] for row, at in there) / 60:.1f}" if there else "–"
    end = " ".join(f"{row.end:.2f}" for row in mine)
    commits = ", ".join(dict.fromkeys(row.commit for row in mine))
    seeds = ", ".join(str(row.seed) for row in mine)
    command = f"`script/leaderboard --task {task} --recipe {recipe} --seeds {seeds.replace(' ', '')}`"
    reached = f"{len(there)} of {len(mine)}"
    return f"| {task} | {recipe} | {seeds} | {reached} | {episodes} | {minutes} | {end} | {commits} | {command} |\n"


def draw(found: Sequence[Row], path: Path) -> None:
    """A panel for each task with rows: the curve of every seed, a colour for each recipe."""
    tasks = [task for task in TASKS if any(row.task == task for row in found)]
    columns = min(4, len(tasks))
    figure = Figure(figsize=(2.6 * columns, 2.3 * -(-len(tasks) // columns)), layout="constrained")
    panels = figure.subplots(-(-len(tasks) // columns), columns, sharey=True, squeeze=False).flat
    colours = {recipe: f"C{number}" for number, recipe in enumerate(RECIPES)}
    for task, axis in zip(tasks, panels, strict=False):
        for row in (row for row in found if row.task == task):
            axis.plot([0, *row.episodes[:-1]], row.success, color=colours[row.recipe], label=row.recipe, alpha=0.8)
        axis.axhline(_GOAL, color="grey", linewidth=0.6)
        axis.set(title=task, ylim=(0, 1.03))
    for axis in list(panels)[len(tasks) :]:
        axis.set_axis_off()
    drawn = [recipe for recipe in RECIPES if any(row.recipe == recipe for row in found)]
    figure.legend(
        [figure.axes[0].plot([], [], color=colours[one])[0] for one in drawn], drawn, loc="outside upper center"
    )
    figure.supxlabel("episodes learned from", fontsize=9)
    figure.savefig(path, dpi=110)


def _wanted(options: argparse.Namespace) -> Iterator[tuple[str, str, int]]:
    """Seed after seed, so that whoever stops early has whole ones."""
    for seed in options.seeds:
        for recipe in options.recipe or RECIPES:
            yield from ((task, recipe, seed) for task in options.task or TASKS if recipe in recipes_of(task))


def _commit() -> str:
    """The commit that is checked out, with a ``+`` if files differ from it."""
    asked = ["git", "describe", "--always", "--dirty=+", "--abbrev=10", "--exclude=*"]
    return subprocess.run(asked, cwd=_ROOT, capture_output=True, text=True, check=True).stdout.strip()


def _options(argv: Sequence[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="script/leaderboard", description=__doc__)
    parser.add_argument("--task", action="append", choices=TASKS, help="only this one; may be repeated")
    parser.add_argument("--recipe", action="append", choices=RECIPES, help="only this one; may be repeated")
    parser.add_argument("--seeds", type=lambda text: [int(word) for word in text.split(",")], default=[0, 1, 2, 3, 4])
    parser.add_argument("--page", action="store_true", help="make no runs, write the page from the rows that there are")
    parser.add_argument(
        "--runs", type=Path, default=_ROOT / "runs" / "leaderboard", help="where unfinished runs are kept"
    )
    parser.add_argument(
        "--out", type=Path, default=_ROOT / "docs" / "reference", help="where leaderboard.jsonl and .md go"
    )
    return parser.parse_args(argv)


if __name__ == "__main__":
    sys.exit(main())
