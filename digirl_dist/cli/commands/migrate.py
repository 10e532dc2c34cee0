"""Translates DigiRL's own YAML file into this package's words and prints it: migrate FILE.

Comments say what became of each key. The exit status is 0 if the new file is complete, and 2 if a key cannot be used;
comments name such keys (docs/digirl.md).
"""

from __future__ import annotations

import argparse
import sys

from digirl_dist.errors import SettingsError
from digirl_dist.report.output import shown
from digirl_dist.settings.paths import expanded


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("file", type=expanded, help="DigiRL's file, beside the files that it includes")


def execute(options: argparse.Namespace) -> int:
    with shown("read the configuration", sys.stderr):
        from digirl_dist.settings import configuration, digirl_files
        from digirl_dist.settings.nearest import nearest
        from digirl_dist.settings.places import own_folder
        from digirl_dist.settings.safe_yaml import read_yaml

        file = options.file.resolve()
        if file.is_dir():
            found = sorted(each.name for each in file.glob("*.yaml") if digirl_files.is_digirl(file, each.name))
            there = nearest("", found) if found else "there is none"
            raise SettingsError(f"{file} is a folder: name one of DigiRL's files in it; {there}")
        if not file.is_file():
            near = sorted(str(each) for each in file.parent.glob("*.yaml"))
            raise SettingsError(f"there is no file {file}; {nearest(str(file), near) if near else 'correct the path'}")
        if not digirl_files.is_digirl(file.parent, file.name):
            read_yaml(file, named=True)  # raises if that is why
            marks = ", ".join(sorted(digirl_files.MARKS))
            raise SettingsError(f"{file} is no configuration of DigiRL's: it has none of their keys, such as {marks}")
        migrated = digirl_files.migrate(file.parent, file.name)
    print(migrated.to_yaml(), end="")
    migrated.refuse()
    configuration.load(str(own_folder()), digirl_files.BASE, migrated.overrides(()))  # refuses values that no run takes
    return 0
