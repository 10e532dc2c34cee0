"""Writes report.html of a run anew, and says where it is: report runs/mine."""

from __future__ import annotations

import argparse
import sys

from digirl_dist.cli.configured import add_run_folder
from digirl_dist.errors import RunFolderError, SettingsError
from digirl_dist.plain_text import printable
from digirl_dist.report.output import shown


def add_arguments(parser: argparse.ArgumentParser) -> None:
    add_run_folder(parser)


def execute(options: argparse.Namespace) -> int:
    folder = options.run.resolve()
    if not (folder / "run.json").is_file():
        raise SettingsError(f"{folder} is no run folder: name the save_path of a run")
    with shown("write the report", sys.stderr):
        from digirl_dist.report.page import write_page

        try:
            write_page(folder)
        except OSError as error:
            raise RunFolderError(f"{folder / 'report.html'} cannot be written: {error.strerror}") from error
    print(printable(str(folder / "report.html")))
    return 0
