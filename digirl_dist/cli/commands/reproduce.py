"""Repeats a run from its run folder and compares the two: reproduce runs/mine --iterations 3.

Tickets are always equal. Figures are equal to a millionth with parallel=single and trainer.device=cpu, because slots
that ask at the same time share a batch, which rounds float32 differently. With bsize=1 they are equal to the last
digit.
"""

from __future__ import annotations

import argparse
import sys
from dataclasses import replace

from digirl_dist.cli.configured import add_overrides, add_run_folder, add_trust, of_run_folder
from digirl_dist.cli.running import run
from digirl_dist.errors import SettingsError
from digirl_dist.plain_text import one_line
from digirl_dist.report.output import shown
from digirl_dist.settings.keys import key_of, quoted
from digirl_dist.settings.paths import expanded


def add_arguments(parser: argparse.ArgumentParser) -> None:
    add_run_folder(parser)
    parser.add_argument("--iterations", type=int, help="number of its iterations to repeat (default: all)")
    parser.add_argument("--into", type=expanded, help="the new run folder (default: RUN-again)")
    add_trust(parser)
    add_overrides(parser)


def execute(options: argparse.Namespace) -> int:
    """Returns 0 if tickets and figures are equal, 1 if they are not."""
    from digirl_dist.report.metrics import Metrics
    from digirl_dist.report.reproduction import conditions, differences, tickets_of

    first = options.run.resolve()
    second = options.into.resolve() if options.into else first.with_name(f"{first.name}-again")
    if "save_path" in map(key_of, options.overrides):
        raise SettingsError("save_path is the run's own here: name the new folder with --into")
    if second.exists() and (not second.is_dir() or any(second.iterdir())):
        raise SettingsError(f"{second} is there already: name another folder with --into")
    source = of_run_folder(options.run, options.overrides, options.trust)
    made = len(Metrics(first / "metrics.jsonl").iterations)
    iterations = made if options.iterations is None else options.iterations
    if not 1 <= iterations <= made:
        raise SettingsError(f"--iterations {iterations} cannot be compared: {first} has {made} finished iterations")
    wanted = tickets_of(first, iterations)  # a damaged file is told before the work
    words = (*source.overrides, f"save_path={quoted(str(second))}")
    status = run(replace(source, overrides=words), watched=False, last=iterations)
    with shown("compare the runs", sys.stderr):
        tickets = wanted == tickets_of(second, iterations)
        found = differences(first, second, iterations)
    print(f"{second}: tickets {'equal' if tickets else 'DIFFER'}; figures {'equal' if not found else 'DIFFER'}")
    changed = [f"the first run had another environment: {each}" for each in conditions(first, second)]
    print("".join(f"  {one_line(each)}\n" for each in (*found[:20], *changed[:20])), end="")
    return status or int(bool(found) or not tickets)
