"""Writes config/multimachine/host.yaml below the working directory: the YAML file to edit, which run then reads."""

from __future__ import annotations

import argparse
import os
import shlex

from digirl_dist.errors import SettingsError
from digirl_dist.settings.paths import expanded
from digirl_dist.settings.places import HERE, own_folder
from digirl_dist.storage import atomic_files


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--config-path", default=HERE, help=f"the folder to write it to (default: {HERE})")


def execute(options: argparse.Namespace) -> int:
    file = expanded(options.config_path) / "host.yaml"
    if file.parent.exists() and not file.parent.is_dir():
        raise SettingsError(f"--config-path {options.config_path} is no folder")
    if os.path.lexists(file):
        raise SettingsError(f"{file} is there already: edit it, or name another --config-path")
    try:
        file.parent.mkdir(parents=True, exist_ok=True)
        atomic_files.write_text(file, (own_folder() / "host.yaml").read_text("utf-8"))
    except OSError as error:
        raise SettingsError(f"--config-path {options.config_path} cannot be written: {error.strerror}") from error
    named = "" if options.config_path == HERE else f" --config-path {shlex.quote(str(file.parent))}"
    print(f"{file}: name your workers in it, then `digirl-dist setup{named}` and `digirl-dist run{named}`")
    return 0
