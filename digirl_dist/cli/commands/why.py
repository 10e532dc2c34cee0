"""Explains what a running or dead run waits for, and since when: why runs/mine."""

from __future__ import annotations

import argparse

from digirl_dist.cli.configured import RUN, add_run_folder
from digirl_dist.errors import SettingsError
from digirl_dist.settings.paths import expanded


def add_arguments(parser: argparse.ArgumentParser) -> None:
    add_run_folder(parser)
    parser.set_defaults(run=None)
    parser.add_argument("--save-path", type=expanded, metavar="RUN", help="the same as RUN")


def execute(options: argparse.Namespace) -> int:
    from digirl_dist.report.why import explain

    if options.run and options.save_path:
        raise SettingsError(f"{options.run} and --save-path {options.save_path} name a run each: leave one of them out")
    print(explain(options.run or options.save_path or expanded(RUN)))
    return 0
