"""``script/simulate``: runs seeds on all cores, and prints the commands of those that break a promise."""

from __future__ import annotations

import argparse
import multiprocessing
import os
import sys
import time
from collections.abc import Sequence
from functools import partial

from digirl_dist.exit_status import Parser
from simulate.scenario import Scenario, draw
from simulate.search import Outcome, command, examine, outcome, shrunk

_CHUNK = 50
_MOST_SHOWN = 10


def main(words: Sequence[str] | None = None) -> int:
    """Returns 0 if every promise held, else 1."""
    options = _parser().parse_args(words)
    if options.seed is not None:
        return _replay(options)
    return _search(options)


def _parser() -> argparse.ArgumentParser:
    parser = Parser(prog="script/simulate", description=__doc__)
    parser.add_argument("--seeds", type=int, default=1000, help="how many seeds to run")
    parser.add_argument("--first", type=int, default=0, help="the first of them")
    parser.add_argument("--processes", type=int, default=os.cpu_count() or 1)
    parser.add_argument("--workers", type=int, help="workers of every run, in place of those drawn")
    parser.add_argument("--slots", type=int, help="slots of every worker")
    parser.add_argument("--seed", type=int, help="run this seed alone, and tell how it went")
    parser.add_argument("--tickets", type=int, help="with --seed: tickets of an iteration")
    parser.add_argument("--iterations", type=int, help="with --seed")
    parser.add_argument("--faults", help="with --seed: the numbers of the faults that strike, as 0,3")
    parser.add_argument("--trace", action="store_true", help="with --seed: print all that happens")
    return parser


def _replay(options: argparse.Namespace) -> int:
    faults = None if options.faults is None else [int(number) for number in options.faults.split(",") if number]
    drawn = draw(options.seed, slots=options.slots)
    scenario = drawn.smaller(options.workers, options.tickets, options.iterations, faults)
    found = outcome(scenario, keep_trace=options.trace)
    for line in found.lines:
        print(line, end="")
    print(_described(scenario))
    print(f"{found.virtual_s:.1f} s of virtual time, trace {found.digest}")
    print(found.detail or "every promise held")
    return 1 if found.promise else 0


def _described(scenario: Scenario) -> str:
    lines = [f"seed {scenario.seed}: {scenario.schedule}", *map(str, scenario.machines), *map(str, scenario.faults)]
    return "\n  ".join(lines)


def _search(options: argparse.Namespace) -> int:
    started = time.monotonic()
    seeds = range(options.first, options.first + options.seeds)
    broken: list[Outcome] = []
    virtual_s = 0.0
    with multiprocessing.get_context("spawn").Pool(options.processes) as pool:
        each = partial(examine, workers=options.workers, slots=options.slots)
        for number, found in enumerate(pool.imap_unordered(each, seeds, _CHUNK), 1):
            virtual_s += found.virtual_s
            if found.promise:
                broken.append(found)
                if len(broken) <= _MOST_SHOWN:
                    _show(found, options.workers, options.slots)
            if number % 1000 == 0:
                print(f"{number} seeds, {len(broken)} broken, {time.monotonic() - started:.0f} s", file=sys.stderr)
    took_s = time.monotonic() - started
    held = f"{len(broken)} broke a promise" if broken else "every promise held"
    print(f"{len(seeds)} seeds, {virtual_s / 3600:.1f} hours of virtual time in {took_s:.0f} s: {held}")
    return 1 if broken else 0


def _show(found: Outcome, workers: int | None, slots: int | None) -> None:
    scenario = draw(found.seed, workers, slots)
    replayed = outcome(scenario)
    print(f"seed {found.seed}: {found.detail}")
    if replayed.digest != found.digest:
        print("  it does not replay: something depends on more than the seed")
    else:
        print(f"  {command(shrunk(scenario, found.promise))}{f' --slots {slots}' if slots else ''}", flush=True)


if __name__ == "__main__":
    sys.exit(main())
