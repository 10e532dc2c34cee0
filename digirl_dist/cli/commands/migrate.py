"""Prints DigiRL's own YAML file in this package's words, with what each of its keys became: migrate FILE.

The exit status is 0 if the new file is whole, and 2 if a key cannot be used, which its comments name (docs/digirl.md).
"""

from __future__ import annotations

import argparse
import sys

from digirl_dist.cli.configured import path
from digirl_dist.errors import SettingsError
from digirl_dist.report.output import shown


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("file", type=path, help="DigiRL's file, beside those that it includes")


def execute(options: argparse.Namespace) -> int:
    with shown("read the configuration", sys.stderr):
        from digirl_dist.settings import digirl_files

        file = options.file.resolve()
        if not file.is_file():
            raise SettingsError(f"there is no file {file}")
        if not digirl_files.is_digirl(file.parent, file.name):
            raise SettingsError(f"{file} is no configuration of DigiRL's")
        migrated = digirl_files.migrate(file.parent, file.name)
    print(migrated.to_yaml(), end="")
    migrated.refuse()
    return 0
