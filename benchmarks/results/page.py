"""``results.md`` and its pictures."""

from __future__ import annotations

import platform
import statistics
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import psutil
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from benchmarks.results.plan import SPLITS, Group
from benchmarks.results.reading import Curve, Found

_INTRODUCTION = """\
# Learning results

`{command}` writes this page and makes the runs that are missing. Every number comes from the `metrics.jsonl` of runs of
the ordinary entry, `python run.py`. Machine: {machine}. For MiniWoB++ see the [leaderboard](leaderboard.md); for what
else was tried, see the [experiments](../dev/experiments.md).

- `start` is the success rate of the first episodes, before any of them was learned from. `end` is that of the last two
  iterations, `mean` that of all. They are measured on training tasks.
- *Training wording* and *test split* are success rates of the last policy on two instances of each task that training
  never meets. Each seed's are in brackets.
- *Tasks solved* counts the tasks that succeeded at least once, for each seed.
- `minutes` is the wall-clock time of one run. Other work ran on the machine during many runs, so it says little.

The policy still explores in all of them. Figures are means over seeds ± standard deviation, which is also the band in
the pictures.
"""


@dataclass(frozen=True)
class Section:
    """A group and what was found of each of its series."""

    group: Group
    found: Sequence[Found]


def write(folder: Path, sections: Sequence[Section], command: str, note: str = "") -> None:
    """``folder/results.md``, and a picture per section in ``folder/results``. Unfinished runs are named, not shown.

    A section that the page has and of which no run is here stays as it is. ``note`` says what a reader must know beside
    the numbers; without one, what the page says between its introduction and its first section stays.
    """
    (folder / "results").mkdir(parents=True, exist_ok=True)
    page = folder / "results.md"
    text = page.read_text() if page.exists() else ""
    written = sections_of(text)
    introduction = _INTRODUCTION.format(command=command, machine=_machine())
    parts = [introduction, f"{note}\n" if note else note_of(text)]
    for section in sections:
        drawn = draw(section, folder / "results" / f"{section.group.name}.png")
        parts.append(_told(section) if drawn else written.get(section.group.title, _told(section)))
    page.write_text("\n".join(parts))


def note_of(page: str) -> str:
    """What stands between the introduction and the first section of a page that was written before."""
    last = _INTRODUCTION.splitlines(keepends=True)[-1]
    return page.partition("\n## ")[0].partition(last)[2].strip("\n") + "\n"


def sections_of(page: str) -> dict[str, str]:
    """The sections of a page that was written before, by their titles."""
    found = page.split("\n## ")[1:]
    return {text.partition("\n")[0]: f"## {text}".rstrip("\n") + "\n" for text in found}


def _told(section: Section) -> str:
    picture = f"![{section.group.title}](results/{section.group.name}.png)\n" if table(section) else ""
    parts = [f"## {section.group.title}\n", f"{section.group.text}\n", table(section), picture, _missing(section)]
    return "\n".join(part for part in parts if part)


def table(section: Section) -> str:
    """A line for each series of which a run is finished; nothing if there is none."""
    if not any(found.curves for found in section.found):
        return ""
    names = ["run", "seeds", "episodes", "start", "end", "mean", "minutes", "date", "commit"]
    if any(found.series.measured for found in section.found):
        names += ["tasks solved", "training wording", "test split"]
    return markdown(names, [_cells(found) for found in section.found if found.curves])


def markdown(names: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    """A table with these names above its columns."""
    head = f"| {' | '.join(names)} |\n" + "| --- " * len(names) + "|\n"
    return head + "".join(f"| {' | '.join(row)} |\n" for row in rows)


def draw(section: Section, path: Path) -> bool:
    """Success rates over episodes, with their spread over seeds. False, and nothing is drawn, without finished runs."""
    shown = [found for found in section.found if found.curves]
    if not shown:
        return False
    figure = Figure(figsize=(8.5, 4.0), layout="constrained")
    axis = figure.subplots()
    for found in shown:
        _draw_curve(axis, found)
    figure.legend(loc="outside right upper")
    figure.supxlabel("episodes learned from", fontsize=9)
    figure.supylabel("success rate", fontsize=9)
    figure.savefig(path, dpi=110)
    return True


def _draw_curve(axis: Axes, found: Found) -> None:
    curves = list(found.curves.values())
    rates = np.array([curve.success for curve in curves])
    middle, spread = rates.mean(axis=0), rates.std(axis=0)
    axis.plot(curves[0].learned, middle, label=found.series.name)
    axis.fill_between(curves[0].learned, middle - spread, middle + spread, alpha=0.2)
    axis.set_ylim(0, 1.03)
    axis.grid(alpha=0.3)


def _cells(found: Found) -> list[str]:
    curves = list(found.curves.values())
    seeds = ", ".join(str(seed) for seed in sorted(found.curves))
    rates = [_spread([getattr(curve, what) for curve in curves]) for what in ("start", "end", "mean")]
    minutes = statistics.fmean(curve.seconds for curve in curves) / 60
    commits = ", ".join(dict.fromkeys(curve.commit for curve in curves))
    cells = [found.series.name, seeds, str(curves[0].episodes), *rates, f"{minutes:.1f}", _days(curves), commits]
    if found.series.measured:
        cells += [" ".join(str(curve.solved) for curve in curves), *(_of_each(curves, split) for split in SPLITS)]
    return cells


def _of_each(curves: Sequence[Curve], split: str) -> str:
    """The mean, and every seed's."""
    rates = [curve.measured[split] for curve in curves if split in curve.measured]
    return f"{_spread(rates)} ({' '.join(f'{rate:.2f}' for rate in rates)})" if rates else "–"


def _spread(rates: Sequence[float]) -> str:
    return f"{statistics.fmean(rates):.2f} ± {statistics.pstdev(rates):.2f}" if len(rates) > 1 else f"{rates[0]:.2f}"


def _days(curves: Sequence[Curve]) -> str:
    days = sorted({curve.day.isoformat() for curve in curves})
    return days[0] if len(days) == 1 else f"{days[0]} to {days[-1]}"


def _missing(section: Section) -> str:
    """What is not there yet, so that nobody takes a mean of one seed for one of three."""
    left = [
        f"`{found.series.name}` (seed {', '.join(map(str, found.missing))})" for found in section.found if found.missing
    ]
    return f"Not finished: {'; '.join(left)}.\n" if left else ""


def _machine() -> str:
    memory = psutil.virtual_memory().total / 2**30
    return f"{psutil.cpu_count()} cores, {memory:.0f} GiB, {platform.system()} {platform.machine()}"
