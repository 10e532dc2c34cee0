"""Explains what a running or dead run waits for, and since when: why runs/mine."""

from __future__ import annotations

import argparse
from pathlib import Path

from digirl_dist.cli.configured import add_run_folder


def add_arguments(parser: argparse.ArgumentParser) -> None:
    add_run_folder(parser)
    parser.add_argument("--save-path", dest="run", help="the same as RUN", default=argparse.SUPPRESS)


def execute(options: argparse.Namespace) -> int:
    from digirl_dist.report.why import explain

    print(explain(Path(options.run).expanduser()))
    return 0
