"""Rewrites a run's report.html and prints its path: report runs/mine."""

from __future__ import annotations

import argparse
import sys

from digirl_dist.cli.configured import add_run_folder
from digirl_dist.errors import RunFolderError
from digirl_dist.plain_text import printable
from digirl_dist.report.output import shown


def add_arguments(parser: argparse.ArgumentParser) -> None:
    add_run_folder(parser)


def execute(options: argparse.Namespace) -> int:
    from digirl_dist.storage.run_folder import existing_run

    folder = existing_run(options.run).resolve()
    with shown("write the report", sys.stderr):
        from digirl_dist.report.page import write_page

        try:
            write_page(folder)
        except OSError as error:
            raise RunFolderError(f"{folder / 'report.html'} cannot be written: {error.strerror}") from error
    print(printable(str(folder / "report.html")))
    return 0
