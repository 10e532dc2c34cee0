"""Makes docs/reference/results.md: real runs over several seeds, where they are not made yet."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from pathlib import Path

from benchmarks.results import page
from benchmarks.results.plan import groups, numbers, runs_of, shortened
from benchmarks.results.reading import found
from benchmarks.results.running import ROOT, finish

_KEPT = "On several ranks"
"""A section of the page whose runs are no longer made."""


def main(argv: Sequence[str] | None = None) -> int:
    """Returns the exit status: 0, or 1 if a run failed."""
    options = _options(argv)
    root = (options.runs or ROOT / "runs" / ("results-quick" if options.quick else "results")).resolve()
    folder = root if options.quick else options.out
    planned = [shortened(group) if options.quick else group for group in groups(root)]
    failed = 0
    if not options.page:
        wanted = [group for group in planned if group.name in (options.only or [one.name for one in planned])]
        failed = finish([run for group in wanted for run in runs_of(group, options.seeds, root)], options.processes)
    sections = [page.Section(group, found(group, runs_of(group, options.seeds, root))) for group in planned]
    told = folder / "results.md"
    before = page.sections_of(told.read_text()).get(_KEPT, "") if told.exists() else ""
    page.write(folder, sections, "script/results" + (" --quick" if options.quick else ""), options.note)
    with told.open("a") as file:
        file.write("\n" + before)
    print(f"wrote {folder / 'results.md'}")
    return 1 if failed else 0


def _options(argv: Sequence[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="script/results", description=__doc__)
    names = [group.name for group in groups(Path())]
    parser.add_argument("--only", action="append", choices=names, help="make the runs of this group; may be repeated")
    parser.add_argument("--seeds", type=numbers, default=[0, 1, 2], help="for example 0,1,2")
    parser.add_argument("--processes", type=int, default=1, help="runs at a time")
    parser.add_argument("--quick", action="store_true", help="four small iterations of each: does everything run?")
    parser.add_argument("--page", action="store_true", help="make no runs, write the page from those that there are")
    parser.add_argument("--runs", type=Path, help="where the runs are kept (runs/results)")
    parser.add_argument("--note", default="", help="a sentence for the page: what else ran on the machine, say")
    parser.add_argument("--out", type=Path, default=ROOT / "docs" / "reference", help="where results.md goes")
    return parser.parse_args(argv)


if __name__ == "__main__":
    sys.exit(main())
