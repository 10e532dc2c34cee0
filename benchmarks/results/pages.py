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

from benchmarks.results.plan import Run, Series
from benchmarks.results.reading import Curve, read
from benchmarks.results.reasons import REASONS
from digirl_dist.emulator.miniwob import miniwob_tasks

_ROOT = Path(__file__).resolve().parents[2]
_ITERATIONS, _EPISODES = 18, 64
"""1,152 episodes a page."""
_SOLVED = 0.9
_HOPELESS = 9
"""Iterations without any success after which a run ends: nothing is learned from such."""
_LOOK_S = 2.0
_END_LIMIT_S = 60.0
_INTRODUCTION = """\
# All pages of MiniWoB++ from nothing

`script/leaderboard --all` makes the missing lines of `pages.jsonl` and writes this page. The same command continues
after an interruption. Each run starts from untrained weights, without demonstrations, and has at most {most:,} episodes
of one page with the shipped defaults. A page is solved when the mean success (full reward) of two iterations in a row
reaches {solved}; its run ends there, or after {hopeless} episodes without a success. The order of the pages is random,
unless `--pages` names them: those expected to be solved came first, so these are no random sample. The agent sees the
picture and reads the names and boxes that the page's accessibility tree and style sheets give (`agent.labels=true`).
The policy still explores in these episodes.

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
    failed = 0
    if options.all or options.pages:
        os.nice(19)
        signal.signal(signal.SIGTERM, lambda *_: sys.exit(1))  # so that the runs end, too
        done = {(line["page"], line["seed"]) for line in _lines(lines)}
        wanted = [(page, seed) for seed in options.seeds for page in pages if (page, seed) not in done]
        failed = _make([_run(*each, options.runs) for each in wanted], options.processes, lines)
    _write(options.out, [line for line in _lines(lines) if line["seed"] == options.seeds[0]])
    return 1 if failed else 0


def solved_at(success: Sequence[float]) -> int | None:
    """Returns the number of iterations after which the mean of the last two was 0.9, None if that never was."""
    return next((place for place, pair in enumerate(pairwise(success), 2) if round(sum(pair) / 2, 9) >= _SOLVED), None)


def ended_at(success: Sequence[float]) -> int | None:
    """Returns the number of iterations after which a run is over, None if it goes on."""
    hopeless = len(success) >= _HOPELESS and not any(success[:_HOPELESS])
    return _HOPELESS if hopeless else solved_at(success)


def _run(page: str, seed: int, runs: Path) -> Run:
    overrides = ("emulator=miniwob", f"emulator.task={page}", "bsize=1")
    return Run(Series(page, _ITERATIONS, _EPISODES, overrides), seed, (runs / f"{page}-{seed}").resolve())


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
                    _end(process)
                if process.poll() is not None:
                    del running[run]
                    failed += not _noted(run, curve, lines)
    finally:
        for process in running.values():
            _end(process)
    return failed


def _started(run: Run) -> subprocess.Popen[bytes]:
    print(f"{time.strftime('%H:%M:%S')} {run.series.name}, seed {run.seed}", flush=True)
    run.folder.mkdir(parents=True, exist_ok=True)
    command = [sys.executable, "run.py", "--config-path", "config/multimachine", "--config-name", "host"]
    with open(run.folder / "output.log", "a") as output:
        return subprocess.Popen([*command, *run.overrides()], cwd=_ROOT, stdout=output, stderr=subprocess.STDOUT)


def _end(process: subprocess.Popen[bytes]) -> None:
    process.terminate()
    try:
        process.wait(_END_LIMIT_S)
    except subprocess.TimeoutExpired:
        process.kill()
        process.wait()


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
    with open(lines, "a") as file:
        file.write(json.dumps(line) + "\n")
    print(f"   {run.series.name}: {success[0]:.2f} -> {success[-1]:.2f} after {line['episodes']} episodes", flush=True)
    shutil.rmtree(run.folder)
    return True


def _lines(path: Path) -> list[Line]:
    return [json.loads(line) for line in path.read_text().splitlines()] if path.exists() else []


def _write(out: Path, lines: Sequence[Line]) -> None:
    """Writes the page and its picture from what there is."""
    pages = [task.id for task in miniwob_tasks("all")]
    solved = sorted(line["episodes"] for line in lines if line["solved"])
    _draw(solved, len(lines), out / "results" / "pages.png")
    text = _INTRODUCTION.format(
        most=_ITERATIONS * _EPISODES,
        hopeless=_HOPELESS * _EPISODES,
        solved=_SOLVED,
        count=len(solved),
        tried=len(lines),
        before=sum(episodes == 2 * _EPISODES for episodes in solved),
        missing=len(set(pages) - {line["page"] for line in lines}),
    )
    (out / "pages.md").write_text(text + _solved_table(lines) + "\n" + _unsolved_table(lines))
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
    return "## Solved\n\n" + _table(["page", "episodes", "first", "last", "minutes", "commit"], found)


def _unsolved_table(lines: Sequence[Line]) -> str:
    reason_of = {page: reason for reason, pages in REASONS.items() for page in pages}
    rows = sorted((line for line in lines if not line["solved"]), key=lambda line: line["page"])
    found = [[line["page"], *_rates(line), _met(line), reason_of.get(line["page"], "–")] for line in rows]
    names = ["page", "first", "last", "minutes", "commit", "ever succeeded", "what is missing, by reading the page"]
    return "## Not solved\n\n" + _table(names, found)


def _rates(line: Line) -> list[str]:
    return [f"{line['success'][0]:.2f}", f"{line['success'][-1]:.2f}", f"{line['minutes']:.1f}", line["commit"]]


def _met(line: Line) -> str:
    return f"in {round(_EPISODES * sum(line['success']))} of {line['episodes']} episodes"


def _table(names: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    head = f"| {' | '.join(names)} |\n" + "| --- " * len(names) + "|\n"
    return head + "".join(f"| {' | '.join(row)} |\n" for row in rows)


def _options(argv: Sequence[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="script/leaderboard", description=__doc__)
    parser.add_argument("--all", action="store_true", help="run every page that has no line yet")
    parser.add_argument("--pages", help="run these pages instead, separated by commas")
    parser.add_argument("--seeds", type=lambda text: [int(word) for word in text.split(",")], default=[0])
    parser.add_argument("--processes", type=int, default=os.cpu_count() or 1, help="runs at a time (one per core)")
    parser.add_argument(
        "--runs", type=Path, default=_ROOT / "runs" / "pages", help="where runs are kept until they end"
    )
    parser.add_argument("--out", type=Path, default=_ROOT / "docs" / "reference", help="where lines and page are kept")
    return parser.parse_args(argv)


if __name__ == "__main__":
    sys.exit(main())
