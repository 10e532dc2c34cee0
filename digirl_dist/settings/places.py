"""The folders of YAML files: the user's, and the package's own."""

from __future__ import annotations

import os
from pathlib import Path

import digirl_dist
from digirl_dist.errors import SettingsError

HERE = "config/multimachine"
"""Where the YAML files are looked for unless the user says otherwise."""


def find_folder(config_path: str) -> Path:
    """Returns the folder under the working directory, then the package, then the checkout. Raises SettingsError."""
    package = Path(digirl_dist.__file__).resolve().parent
    places = [Path.cwd(), package, package.parent]
    for place in places:
        if (found := place / os.path.expanduser(config_path)).is_dir():
            if not os.access(found, os.R_OK | os.X_OK):
                raise SettingsError(f"--config-path {config_path} cannot be read here: allow it, or name another")
            return found.resolve()
    path = Path(os.path.expanduser(config_path))
    meant = f": write --config-path {path.parent} --config-name {path.stem}" if path.is_file() else ""
    raise SettingsError(f"--config-path {config_path} is no folder below {', '.join(map(str, places))}{meant}")


def own_folder() -> Path:
    """Returns the folder of the YAML files that come with the package."""
    package = Path(digirl_dist.__file__).resolve().parent
    return next(place / HERE for place in (package, package.parent) if (place / HERE).is_dir())
