"""Explains what a running or dead run waits for, and since when: why runs/mine."""

from __future__ import annotations

import argparse

from digirl_dist.cli.configured import add_run_folder, path


def add_arguments(parser: argparse.ArgumentParser) -> None:
    add_run_folder(parser)
    parser.add_argument("--save-path", type=path, metavar="RUN", help="the same as RUN")


def execute(options: argparse.Namespace) -> int:
    from digirl_dist.report.why import explain

    print(explain(options.save_path or options.run))
    return 0
