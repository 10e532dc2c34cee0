"""The command ``migrate``: prints a file of DigiRL's as one of this package."""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from pathlib import Path

from digirl_dist.errors import SettingsError
from digirl_dist.exit_status import exit_status

_ABOUT = "print DigiRL's YAML file as one of this package, with what each of its keys became (docs/digirl.md)"


def migrate(words: Sequence[str]) -> int:
    """Returns the exit status: 0 the new file is whole, 2 a key cannot be used, which its comments name."""
    parser = argparse.ArgumentParser(prog="digirl-dist migrate", description=_ABOUT)
    parser.add_argument("file", type=Path, help="DigiRL's file, beside those that it includes")
    options = parser.parse_args(words)
    return exit_status(lambda: _migrate(options.file.expanduser().resolve()))


def _migrate(path: Path) -> int:
    from digirl_dist.settings import digirl_files

    if not digirl_files.is_digirl(path.parent, path.name):
        raise SettingsError(f"{path} is no configuration of DigiRL's")
    migrated = digirl_files.migrate(path.parent, path.name)
    print(migrated.to_yaml(), end="")
    migrated.refuse()
    return 0
