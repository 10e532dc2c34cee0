"""Makes docs/reference/pages.md: MiniWoB++ from nothing, page by page, each line kept in pages.jsonl beside it."""

from __future__ import annotations

import argparse
import json
import os
import shutil
import signal
import subprocess
import sys
import time
from collections import deque
from collections.abc import Sequence
from itertools import pairwise
from pathlib import Path
from random import Random
from typing import Any

from matplotlib.figure import Figure

from benchmarks.results.page import markdown
from benchmarks.results.plan import Run, Series, numbers
from benchmarks.results.reading import Curve, lines_of, read
from benchmarks.results.reasons import REASONS
from benchmarks.results.running import ROOT, started
from digirl_dist.child_process import reap
from digirl_dist.emulator.miniwob import miniwob_tasks

_ITERATIONS, _EPISODES = 18, 64
_SOLVED = 0.9
_MOST = _ITERATIONS * _EPISODES
"""Episodes of a page."""
_HOPELESS = 9
"""Iterations without any success after which a run ends: nothing is learned from such."""
_INGREDIENTS = {
    "labels": "agent.labels=false",
    "memory": "agent.memory=0",
    "avoid": "algorithm.filtered_bc.avoid=0",
    "erase_loops": "algorithm.erase_loops=false",
    "newest": "algorithm.filtered_bc.newest=1000000",
}
"""What a run may go without -> the override that takes it away."""
_LOOK_S = 2.0
_END_LIMIT_S = 60.0
_INTRODUCTION = """\
# All pages of MiniWoB++ from nothing

`script/leaderboard --all` makes the missing lines of `pages.jsonl` and writes this page. The same command continues
after an interruption. Each run starts from untrained weights, without demonstrations, and has at most {most:,} episodes
of one page with the shipped defaults. A page is solved when the mean success (full reward) of two iterations in a row
reaches {solved}; its run ends there, or after {hopeless} episodes without a success. The order of the pages is random,
unless `--pages` names them. The agent sees the picture and reads the names and boxes that the page's accessibility tree
and style sheets give (`agent.labels=true`). The policy still explores in these episodes. Runs of the same commit and
seed differ: of four of click-tab-2-hard one ended at 0.12, having been at 0.84.

**{count} of {tried} pages solved** ({before} of them were before learning); {missing} pages not run yet.

![Pages solved against episodes](results/pages.png)

"""

Line = dict[str, Any]


def main(argv: Sequence[str] | None = None) -> int:
    """Returns the exit status: 0, or 1 if a run failed."""
    options = _options(argv)
    (options.out / "results").mkdir(parents=True, exist_ok=True)
    lines, pages = options.out / "pages.jsonl", [task.id for task in miniwob_tasks(options.pages or "all")]
    Random(0).shuffle(pages)
    known = lines_of(lines)
    if options.learned:
        learned = {line["page"] for line in _main(known) if line["solved"] and line["episodes"] > 2 * _EPISODES}
        pages = [page for page in pages if page in learned]
    failed = 0
    if options.all or options.pages:
        os.nice(19)
        signal.signal(signal.SIGTERM, lambda *_: sys.exit(1))  # so that the runs end, too
        done = {(line["page"], line["seed"], line.get("without")) for line in known}
        wanted = [(page, seed, options.without) for seed in options.seeds for page in pages[: options.first]]
        runs = [_run(*each, options.runs) for each in wanted if each not in done]
        failed = _make(runs, options.processes, lines)
    _write(options.out, lines_of(lines))
    return 1 if failed else 0


def solved_at(success: Sequence[float]) -> int | None:
    """Returns the number of iterations after which the mean of the last two was 0.9, None if that never was."""
    return next((place for place, pair in enumerate(pairwise(success), 2) if round(sum(pair) / 2, 9) >= _SOLVED), None)


def ended_at(success: Sequence[float]) -> int | None:
    """Returns the number of iterations after which a run is over, None if it goes on."""
    hopeless = len(success) >= _HOPELESS and not any(success[:_HOPELESS])
    return _HOPELESS if hopeless else solved_at(success)


def _run(page: str, seed: int, without: str | None, runs: Path) -> Run:
    overrides = ["emulator=miniwob", f"emulator.task={page}", "bsize=1"]
    overrides += [_INGREDIENTS[without]] if without else []
    place = "-".join([page, str(seed), *([without] if without else [])])
    return Run(Series(page, _ITERATIONS, _EPISODES, tuple(overrides)), seed, (runs / place).resolve())


def _make(runs: Sequence[Run], processes: int, lines: Path) -> int:
    """Makes the runs, so many at a time, and appends a line for each that is over. Returns how many failed."""
    waiting, failed = deque(runs), 0
    running: dict[Run, subprocess.Popen[bytes]] = {}
    try:
        while waiting or running:
            while waiting and len(running) < processes:
                run = waiting.popleft()
                running[run] = _started(run)
            time.sleep(_LOOK_S)
            for run, process in list(running.items()):
                curve = read(run)
                if curve is not None and ended_at(curve.success) is not None:
                    process.terminate()
                    reap(process, _END_LIMIT_S)
                if process.poll() is not None:
                    del running[run]
                    failed += not _noted(run, curve, lines)
    finally:
        for process in running.values():
            process.terminate()
            reap(process, _END_LIMIT_S)
    return failed


def _started(run: Run) -> subprocess.Popen[bytes]:
    print(f"{time.strftime('%H:%M:%S')} {run.series.name}, seed {run.seed}", flush=True)
    return started(run.folder, "host", run.overrides())


def _noted(run: Run, curve: Curve | None, lines: Path) -> bool:
    """Appends the line of a run that is over and removes its folder. False, and nothing is done, if it failed."""
    if curve is None or not (curve.finished or ended_at(curve.success)):
        print(f"   failed; {run.folder / 'output.log'} says why", file=sys.stderr)
        return False
    success = curve.success[: ended_at(curve.success)]
    line = {
        "page": run.series.name,
        "seed": run.seed,
        "episodes": _EPISODES * len(success),
        "solved": solved_at(success) is not None,
        "success": [round(rate, 4) for rate in success],
        "minutes": round(curve.elapsed[len(success) - 1] / 60, 1),
        "date": curve.day.isoformat(),
        "commit": curve.commit,
        "settings": list(run.series.overrides),
    }
    if gone := [name for name, override in _INGREDIENTS.items() if override in run.series.overrides]:
        line["without"] = gone[0]
    with open(lines, "a") as file:
        file.write(json.dumps(line) + "\n")
    print(f"   {run.series.name}: {success[0]:.2f} -> {success[-1]:.2f} after {line['episodes']} episodes", flush=True)
    shutil.rmtree(run.folder)
    return True


def _main(lines: Sequence[Line]) -> list[Line]:
    return [line for line in lines if line["seed"] == 0 and "without" not in line]


def _write(out: Path, known: Sequence[Line]) -> None:
    """Writes the page and its picture from what there is."""
    pages, lines = [task.id for task in miniwob_tasks("all")], _main(known)
    solved = sorted(line["episodes"] for line in lines if line["solved"])
    _draw(solved, len(lines), out / "results" / "pages.png")
    text = _INTRODUCTION.format(
        most=_MOST,
        hopeless=_HOPELESS * _EPISODES,
        solved=_SOLVED,
        count=len(solved),
        tried=len(lines),
        before=sum(episodes == 2 * _EPISODES for episodes in solved),
        missing=len(set(pages) - {line["page"] for line in lines}),
    )
    tables = [_solved_table(lines), _seeds_table(known), _ablation_table(known), _unsolved_table(lines)]
    (out / "pages.md").write_text(text + "\n".join(filter(None, tables)))
    print(f"wrote {out / 'pages.md'}")


def _draw(solved: Sequence[int], tried: int, path: Path) -> None:
    figure = Figure(figsize=(7.0, 3.2), layout="constrained")
    axis = figure.subplots()
    steps = [_EPISODES * number for number in range(_ITERATIONS + 1)]
    axis.step(steps, [sum(episodes <= step for episodes in solved) for step in steps], where="post")
    axis.axhline(tried, color="grey", linestyle=":")
    axis.set(xlabel="episodes of each page", ylabel=f"pages solved, of {tried} tried", ylim=(0, None))
    axis.grid(alpha=0.3)
    figure.savefig(path, dpi=110)


def _solved_table(lines: Sequence[Line]) -> str:
    rows = sorted((line for line in lines if line["solved"]), key=lambda line: (line["episodes"], line["page"]))
    found = [[line["page"], str(line["episodes"]), *_rates(line)] for line in rows]
    return "## Solved\n\n" + markdown(["page", "episodes", "first", "last", "minutes", "commit"], found)


def _unsolved_table(lines: Sequence[Line]) -> str:
    reason_of = {page: reason for reason, pages in REASONS.items() for page in pages}
    rows = sorted((line for line in lines if not line["solved"]), key=lambda line: line["page"])
    found = [[line["page"], *_rates(line), _met(line), reason_of.get(line["page"], "–")] for line in rows]
    names = ["page", "first", "last", "minutes", "commit", "ever succeeded", "what is missing, by reading the page"]
    return "## Not solved\n\n" + markdown(names, found)


def _seeds_table(known: Sequence[Line]) -> str:
    """Of the pages that were run with more than one seed; empty without any."""
    cells: dict[str, dict[int, str]] = {}
    for line in known:
        if "without" not in line:
            told = str(line["episodes"]) if line["solved"] else f"({line['success'][-1]:.2f})"
            cells.setdefault(line["page"], {})[line["seed"]] = told
    several = {page: own for page, own in sorted(cells.items()) if len(own) > 1}
    if not several:
        return ""
    seeds = sorted({seed for own in several.values() for seed in own})
    rows = [[page, *(own.get(seed, "") for seed in seeds)] for page, own in several.items()]
    run = [[row[place] for row in rows if row[place]] for place in range(1, 1 + len(seeds))]
    rows.append(["solved", *(f"**{sum(told.isdigit() for told in own)} of {len(own)}**" for own in run)])
    heading = "## With several seeds\n\nEpisodes until a page was solved, or in brackets its last success.\n\n"
    return heading + markdown(["page", *(f"seed {seed}" for seed in seeds)], rows)


def _ablation_table(known: Sequence[Line]) -> str:
    """Of the pages that were run without an ingredient, beside the same pages with all; empty without any."""
    whole = {line["page"]: line for line in _main(known)}
    rows = []
    for name, override in _INGREDIENTS.items():
        own = [line for line in known if line.get("without") == name and line["page"] in whole]
        both = [[whole[line["page"]] for line in own], own]
        if own:
            rows.append([name, f"`{override}`", str(len(own)), *(_in_sum(lines) for lines in both)])
    names = ["without", "setting", "pages", "with it: solved, episodes", "without it: solved, episodes"]
    heading = f"## Without each ingredient\n\nSeed 0; of an unsolved page all {_MOST:,} episodes count.\n\n"
    return heading + markdown(names, rows) if rows else ""


def _in_sum(lines: Sequence[Line]) -> str:
    episodes = [line["episodes"] if line["solved"] else _MOST for line in lines]
    return f"{sum(line['solved'] for line in lines)}, {sum(episodes):,}"


def _rates(line: Line) -> list[str]:
    return [f"{line['success'][0]:.2f}", f"{line['success'][-1]:.2f}", f"{line['minutes']:.1f}", line["commit"]]


def _met(line: Line) -> str:
    return f"in {round(_EPISODES * sum(line['success']))} of {line['episodes']} episodes"


def _options(argv: Sequence[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="script/leaderboard", description=__doc__)
    parser.add_argument("--all", action="store_true", help="run every page that has no line yet")
    parser.add_argument("--pages", help="run these pages instead, separated by commas")
    parser.add_argument("--first", type=int, help="only so many pages, the first of the random order")
    parser.add_argument("--learned", action="store_true", help="only pages that seed 0 solved by learning")
    parser.add_argument("--without", choices=[*_INGREDIENTS], help="take this away from the agent or the algorithm")
    parser.add_argument("--seeds", type=numbers, default=[0])
    parser.add_argument("--processes", type=int, default=os.cpu_count() or 1, help="runs at a time (one per core)")
    parser.add_argument("--runs", type=Path, default=ROOT / "runs" / "pages", help="where runs are kept until they end")
    parser.add_argument("--out", type=Path, default=ROOT / "docs" / "reference", help="where lines and page are kept")
    return parser.parse_args(argv)


if __name__ == "__main__":
    sys.exit(main())
