"""Explains what a running or dead run waits for, and since when: why runs/mine."""

from __future__ import annotations

import argparse
from pathlib import Path

from digirl_dist.cli.configured import add_run_folder


def add_arguments(parser: argparse.ArgumentParser) -> None:
    add_run_folder(parser)
    parser.add_argument("--save-path", metavar="RUN", help="the same as RUN")


def execute(options: argparse.Namespace) -> int:
    from digirl_dist.report.why import explain

    print(explain(Path(options.save_path or options.run).expanduser()))
    return 0
