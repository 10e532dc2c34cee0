"""Commands that look at runs, pass them on, or forecast them."""

from __future__ import annotations

import argparse
import ctypes
import json
import sys
import time
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import asdict, fields
from pathlib import Path
from typing import TYPE_CHECKING

from digirl_dist.cli.shared import (
    EMULATOR,
    RUN_FOLDER,
    TRUST,
    Command,
    add_configuration,
    argument,
    fitted,
    run_of,
    settings_of,
)
from digirl_dist.errors import DigirlDistError, LoggerError, NoRunError, RunFolderError, SettingsError
from digirl_dist.plain_text import printable
from digirl_dist.report.output import is_terminal, shown
from digirl_dist.settings.paths import expanded
from digirl_dist.types import Json
from digirl_dist.user_code.blame import RAISED, described

if TYPE_CHECKING:
    from digirl_dist.plan.figures import Figures
    from digirl_dist.plan.forecast import FleetPlan, Forecast
    from digirl_dist.settings import Settings
    from digirl_dist.viewer.server import Viewer

_M_MMAP_THRESHOLD = -3
"""mallopt(3)"""
_SLOTS_OF_AUTO = 4
_FLEETS = (1, 8, 64, 1000, 10_000)
_WORTH = 0.05
"""Share of episodes an hour from which on a change is recommended."""
_Forecasts = tuple["Forecast", dict[str, "Forecast"]]
"""Of a plan, and of the same with one change, by name."""


_OF_VIEW = (
    argument("runs", nargs="*", type=expanded, metavar="RUN", help="run folders, or folders of them (default: runs/)"),
    argument("--port", type=int, help="port on 127.0.0.1 (default: a free one)"),
    argument(
        "--bundle", type=expanded, metavar="FILE", help="write one file (.html or .zip) that needs no server, and exit"
    ),
)


def _view(options: argparse.Namespace) -> int:
    """Shows runs in the browser: curves side by side, every episode step by step, tasks and workers over time.

    Serves the pages on a loopback port of this machine; the printed address contains a token. From another machine: ssh
    -L 8765:127.0.0.1:8765 THIS_MACHINE, with --port 8765 here.
    """
    if options.bundle is not None:
        if options.port is not None:
            raise SettingsError(f"--port {options.port} is for the viewer, which --bundle does without: leave one out")
        with shown("write the file", sys.stderr):
            from digirl_dist.report.bundle import write_bundle

            written = write_bundle(_folders(options.runs), options.bundle)
        print(printable(str(written)))
        return 0
    with shown("start the viewer", sys.stderr):
        viewer = _viewer(options)
        _return_memory_at_once()
    print(f"open {viewer.url}\nCtrl-C ends it", flush=True)
    with suppress(KeyboardInterrupt):
        viewer.serve()
    return 0


def _viewer(options: argparse.Namespace) -> Viewer:
    from digirl_dist.settings.extras import extra_needed

    folders = _folders(options.runs)
    with extra_needed("digirl-dist view", "Starlette and uvicorn", "view"):
        from digirl_dist.viewer.server import Viewer
    try:
        return Viewer(folders, options.port or 0, options.trust)
    except (OSError, OverflowError) as error:
        raise SettingsError(f"--port {options.port} cannot be used: {error}; 0 takes a free one") from error


def _folders(named: Sequence[Path]) -> list[Path]:
    return [run for folder in named or [Path("runs")] for run in _runs_in(folder)]


def _return_memory_at_once() -> None:
    """Else each thread keeps what the largest file took that it ever read."""
    import pyarrow as pa

    pa.set_memory_pool(pa.system_memory_pool())
    with suppress(AttributeError):  # a C library without it
        ctypes.CDLL(None).mallopt(_M_MMAP_THRESHOLD, 1 << 16)


def _runs_in(folder: Path) -> list[Path]:
    """Returns the folder if it is a run's, or else the runs in it. Raises NoRunError if there is none."""
    from digirl_dist.storage.run_folder import existing_run, runs_in

    try:
        return [existing_run(folder)]
    except NoRunError:
        if found := runs_in(folder):
            return [existing_run(run) for run in found]
        raise


def _report(options: argparse.Namespace) -> int:
    """Rewrites a run's report.html and prints its path: report runs/mine."""
    folder = run_of(options).resolve()
    with shown("write the report", sys.stderr):
        from digirl_dist.report.bundle import PAGE_BYTES, write_report
        from digirl_dist.report.viewed import ViewedRun

        try:
            write_report(ViewedRun(folder, most_bytes=PAGE_BYTES))
        except OSError as error:
            raise RunFolderError(f"{folder / 'report.html'} cannot be written: {error.strerror}") from error
    print(printable(str(folder / "report.html")))
    return 0


def _why(options: argparse.Namespace) -> int:
    """Explains what a running or dead run waits for, and since when: why runs/mine."""
    from digirl_dist.report.why import explain

    if options.run and options.save_path:
        raise SettingsError(f"{options.run} and --save-path {options.save_path} name a run each: leave one of them out")
    print(explain(options.run or options.save_path or run_of(options)))
    return 0


def _add_export(parser: argparse.ArgumentParser) -> None:
    from digirl_dist.export import FORMS

    parser.add_argument("run", type=expanded, metavar="RUN", help="the run's folder, its save_path")
    parser.add_argument("destination", type=expanded, metavar="DEST", help="folder to write; it must not exist")
    parser.add_argument("--to", choices=list(FORMS), required=True, help="the format")
    parser.add_argument("--push", metavar="OWNER/NAME", help="upload it to this repository of the Hugging Face hub")
    parser.add_argument("--verdicts", metavar="NAME", help="those of `regrade`, in place of the episodes' own")
    parser.add_argument("--public", action="store_true", help="with --push: a new repository is public")


def _export(options: argparse.Namespace) -> int:
    """Writes a run in the format of other tools: export runs/mine --to datasets mine_dataset.

    Exports the training episodes of finished iterations; machines have numbers instead of names. The folder must be
    new.
    """
    if options.public and options.push is None:
        raise SettingsError("--public says who may read what is uploaded: add --push OWNER/NAME, or leave it out")
    with shown("export the run", sys.stderr) as progress:
        from digirl_dist.export import export, push, refuse_no_repository

        if options.push is not None:
            refuse_no_repository(options.push)
        written = export(options.run, options.to, options.destination, options.verdicts, progress.status)
    print(printable(str(written)))
    if options.push is not None:
        with shown("upload to the hub", sys.stderr):
            address = push(written, options.to, options.push, private=not options.public)
        print(address)
    return 0


_OF_PLAN = (
    argument("--run", type=expanded, metavar="DIR", help="a run folder whose measured figures are used"),
    argument(
        "--figure", action="append", default=[], metavar="NAME=NUMBER", help="replaces a figure, for example step_s=0.5"
    ),
    argument("--fleet", metavar="N,N", help="numbers of workers (default: the configuration's, and others)"),
    argument("--json", action="store_true", help="print the figures and a list of forecasts"),
)


def _plan(options: argparse.Namespace) -> int:
    """Forecasts the effect of more workers or other settings: episodes an hour, busy share, where the time goes."""
    with shown("read the configuration", sys.stderr) as progress:
        from digirl_dist.plan.forecast import forecast, variants

        if (named := options.overrides[:1]) and "=" not in named[0] and expanded(named[0]).is_dir():
            raise SettingsError(f"{named[0]} is a folder: `--run {named[0]}` takes the figures of a run")
        settings = settings_of(options)
        own = _slots_of(settings)
        at_hand = len(own)
        fleets = sorted({at_hand, *_FLEETS}) if options.fleet is None else _numbers(options.fleet)
        figures = _figures(settings, options.run, options.figure)
        plans = [_fleet_plan(settings, workers, round(sum(own) / at_hand)) for workers in fleets]
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
        text = _as_text(figures, found, settings.bsize == "auto", at_hand)
        print(fitted(text) if is_terminal(sys.stdout) else text)
    return 0


def _slots_of(settings: Settings) -> list[int]:
    """Returns how many slots each worker of the configuration has."""
    from digirl_dist.settings.hosts import worker_entries

    own = [settings.bsize] * (
        settings.dry_run_workers if settings.dry_run else getattr(settings.collector, "workers", 1)
    )
    if settings.worker_ips and not settings.dry_run:
        own = [settings.bsize if entry.bsize is None else entry.bsize for entry in worker_entries(settings)]
    return [each if isinstance(each, int) else _SLOTS_OF_AUTO for each in own]


def _numbers(text: str) -> list[int]:
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


def _fleet_plan(settings: Settings, workers: int, slots: int) -> FleetPlan:
    from digirl_dist.assembly import schedule
    from digirl_dist.plan.forecast import FleetPlan

    return FleetPlan(
        workers,
        slots,
        settings.rollout_size,
        schedule.iterations_ahead(settings),
    )


def _plain(one: Forecast) -> dict[str, Json]:
    plan = {"workers": one.plan.workers, "slots": one.plan.slots, "rollout_size": one.plan.rollout_size}
    return {**plan, **{name: value for name, value in vars(one).items() if name != "plan"}}


def _as_text(figures: Figures, found: Sequence[_Forecasts], is_auto: bool, at_hand: int) -> str:
    told = ((each.name, getattr(figures, each.name), each.default) for each in fields(figures))
    said = ", ".join(f"{name} {value:.3g}{' (default)' * (value == usual)}" for name, value, usual in told)
    lines = [f"figures: {said}", "", "workers  slots  episodes/h   busy  iteration  where the slots' time goes"]
    for one, _ in found:
        slots = one.plan.workers * one.plan.slots
        shares = ", ".join(f"{activity} {share:.0%}" for activity, share in one.shares.items() if share >= 0.005)
        lines.append(
            f"{one.plan.workers:7}{slots:7}{one.episodes_per_hour:12.0f}{one.busy:7.0%}{one.iteration_s:9.1f} s  "
            f"{shares}{'  <- this fleet' * (one.plan.workers == at_hand)}"
        )
    lines += ["", "the same with one change: episodes an hour, and their share of the above"]
    for one, variants in found:
        for name, other in variants.items():
            change = other.episodes_per_hour / one.episodes_per_hour - 1
            lines.append(f"{one.plan.workers:7}  {name:28}{other.episodes_per_hour:12.0f}  {change:+.0%}")
    if is_auto:
        lines.append(f"\nbsize is auto: {_SLOTS_OF_AUTO} slots on each worker are assumed")
    one, variants = next(each for each in found if each[0].plan.workers == at_hand or each is found[-1])
    return "\n".join([*lines, "", _recommendation(one, variants)])


def _recommendation(one: Forecast, variants: dict[str, Forecast]) -> str:
    """Names the change that gains most for a fleet, if any gains something."""
    name, best = max(variants.items(), key=lambda each: each[1].episodes_per_hour)
    gain = best.episodes_per_hour / one.episodes_per_hour - 1
    fleet = f"{one.plan.workers} worker{'s' * (one.plan.workers > 1)} of {one.plan.slots} slots"
    if gain >= _WORTH:
        return f"recommended for {fleet}: {name}, {gain:+.0%} episodes an hour"
    return f"recommended for {fleet}: leave it so; no change of one setting gains {_WORTH:.0%}, more workers may"


def _add_log(parser: argparse.ArgumentParser) -> None:
    from digirl_dist.report.loggers import names

    parser.add_argument("--to", choices=names(), required=True, help="the logger")


def _log(options: argparse.Namespace) -> int:
    """Gives a run's curves to another tool, also afterwards: log runs/mine --to wandb.

    Follows a running run until it ends. What the tool has been given before is not given again.
    """
    from digirl_dist.settings.extras import extra_needed
    from digirl_dist.storage.status import is_running

    folder, to = run_of(options), options.to

    def is_ended() -> bool:
        time.sleep(1.0)
        return not is_running(folder)

    try:
        with shown(f"give the run to {to}", sys.stderr), extra_needed(f"--to {to}", to, to):
            from digirl_dist.report.follower import Follower

            place = Follower(folder, to).follow(is_ended)
    except DigirlDistError:
        raise
    except RAISED as error:
        raise LoggerError(f"--to {to}: {described(error)}") from error
    print(printable(f"{to} was given all of {folder}{f': {place}' if place else ''}"))
    return 0


_OF_SETTINGS = (
    argument("word", nargs="?", default="", help="only keys with this word in them, such as ssh or emulator.android"),
    argument("--expert", action="store_true", help="only those that few runs have a reason to change"),
)


def _settings(options: argparse.Namespace) -> int:
    """Prints keys of the configuration, their defaults and their meaning: settings [WORD]."""
    from digirl_dist.settings.reference import sections

    word, expert = options.word, options.expert
    found = {
        section.title: [
            row for row in section.rows if (word in row.key or word in row.anchor) and (row.expert or not expert)
        ]
        for section in sections()
    }
    if not any(found.values()):
        from digirl_dist.settings.conversion import meant_key

        raise SettingsError(
            f"no {'expert ' * expert}key has {word!r} in it; "
            f"{'leave out --expert, which shows few of them' if expert else meant_key(word, None)}"
        )
    for title, rows in found.items():
        if rows:
            print(f"# {title}")
        for row in rows:
            print(f"{row.key}  ({row.kind}; {row.default.strip('`')})\n    {' '.join(row.meaning.split())}")
    return 0


COMMANDS = {
    "settings": Command(_settings, *_OF_SETTINGS),
    "export": Command(_export, _add_export),
    "log": Command(_log, RUN_FOLDER, _add_log),
    "plan": Command(_plan, add_configuration, EMULATOR, *_OF_PLAN),
    "report": Command(_report, RUN_FOLDER),
    "view": Command(_view, *_OF_VIEW, TRUST),
    "why": Command(_why, RUN_FOLDER, argument("--save-path", type=expanded, metavar="RUN", help="the same as RUN")),
}
