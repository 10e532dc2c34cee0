"""Forecasts the effect of more workers or other settings: episodes an hour, busy share, where the time goes."""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING

from digirl_dist.cli.command import fitted
from digirl_dist.cli.configured import add_configuration, add_emulator, settings_of
from digirl_dist.report.output import is_terminal, shown
from digirl_dist.settings.paths import expanded
from digirl_dist.types import Json

if TYPE_CHECKING:
    from digirl_dist.plan.figures import Figures
    from digirl_dist.plan.forecast import FleetPlan, Forecast
    from digirl_dist.settings import Settings

_SLOTS_OF_AUTO = 4


def add_arguments(parser: argparse.ArgumentParser) -> None:
    add_configuration(parser)
    add_emulator(parser)
    parser.add_argument("--run", type=expanded, metavar="DIR", help="a run folder whose measured figures are used")
    parser.add_argument(
        "--figure", action="append", default=[], metavar="NAME=NUMBER", help="replaces a figure, for example step_s=0.5"
    )
    parser.add_argument("--fleet", default="1,8,64,1000,10000", metavar="N,N", help="numbers of workers")
    parser.add_argument("--json", action="store_true", help="print the figures and a list of forecasts")


def execute(options: argparse.Namespace) -> int:
    with shown("read the configuration", sys.stderr) as progress:
        from digirl_dist.plan.forecast import forecast, variants

        fleets = _numbers(options.fleet)
        settings = settings_of(options)
        figures = _figures(settings, options.run, options.figure)
        plans = [_plan(settings, workers) for workers in fleets]
        progress.status.host("forecast")
        found = [
            (forecast(figures, plan), {name: forecast(figures, other) for name, other in variants(plan).items()})
            for plan in plans
        ]
    if options.json:
        lines = [
            {**_plain(one), "variants": {name: asdict(other) for name, other in more.items()}} for one, more in found
        ]
        print(json.dumps({"figures": asdict(figures), "forecasts": lines}))
    else:
        text = _as_text(figures, found, settings.bsize == "auto")
        print(fitted(text) if is_terminal(sys.stdout) else text)
    return 0


def _numbers(text: str) -> list[int]:
    from digirl_dist.errors import SettingsError

    words = text.split(",")
    if not all(word.isdecimal() and 0 < int(word) <= 100_000 for word in words):
        raise SettingsError(f"--fleet {text}: must be whole numbers from 1 to 100000, as 1,8,64")
    return [int(word) for word in words]


def _figures(settings: Settings, run: Path | None, words: Sequence[str]) -> Figures:
    from digirl_dist.emulator.plugins.rehearsal import RehearsalSettings
    from digirl_dist.plan.figures import of_rehearsal, of_run, stated

    measured = None
    if run is not None:
        measured = of_run(run)
    elif isinstance(settings.emulator, RehearsalSettings):
        measured = of_rehearsal(settings.emulator)
    return stated(words, measured)


def _plan(settings: Settings, workers: int) -> FleetPlan:
    from digirl_dist.assembly import schedule
    from digirl_dist.plan.forecast import FleetPlan

    return FleetPlan(
        workers,
        settings.bsize if isinstance(settings.bsize, int) else _SLOTS_OF_AUTO,
        settings.rollout_size,
        schedule.closing(settings),
        schedule.iterations_ahead(settings),
    )


def _plain(one: Forecast) -> dict[str, Json]:
    plan = {"workers": one.plan.workers, "slots": one.plan.slots, "rollout_size": one.plan.rollout_size}
    return {**plan, **{name: value for name, value in vars(one).items() if name != "plan"}}


def _as_text(
    figures: Figures, found: Sequence[tuple[Forecast, dict[str, Forecast]]], is_auto: bool
) -> str:  # fmt: skip
    said = ", ".join(f"{name} {value:.3g}" for name, value in asdict(figures).items())
    lines = [f"figures: {said}", "", "workers  slots  episodes/h   busy  iteration  where the slots' time goes"]
    for one, _ in found:
        slots = one.plan.workers * one.plan.slots
        shares = ", ".join(f"{activity} {share:.0%}" for activity, share in one.shares.items() if share >= 0.005)
        lines.append(
            f"{one.plan.workers:7}{slots:7}{one.episodes_per_hour:12.0f}{one.busy:7.0%}{one.iteration_s:9.1f} s  "
            f"{shares}"
        )
    lines += ["", "the same with one change: episodes an hour, and their share of the above"]
    for one, variants in found:
        for name, other in variants.items():
            change = other.episodes_per_hour / one.episodes_per_hour - 1
            lines.append(f"{one.plan.workers:7}  {name:28}{other.episodes_per_hour:12.0f}  {change:+.0%}")
    if is_auto:
        lines.append(f"\nbsize is auto: {_SLOTS_OF_AUTO} slots on each worker are assumed")
    return "\n".join(lines)
