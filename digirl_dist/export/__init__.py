"""Writes runs in the formats of other tools. Each format is one module of ``forms``.

Such a module has a docstring, whose first line says what it writes, and ``write(source, folder)``.
"""

from __future__ import annotations

import importlib
import os
import pkgutil
import shutil
import tempfile
from pathlib import Path
from types import ModuleType

from digirl_dist.errors import RunFolderError, SettingsError
from digirl_dist.export import forms
from digirl_dist.settings.paths import PathUse, refuse_unwritable


def names() -> list[str]:
    """Returns the names of all formats."""
    return sorted(module.name for module in pkgutil.iter_modules(forms.__path__))


def form(name: str) -> ModuleType:
    """Returns the module of a format. Raises SettingsError."""
    if name not in names():
        raise SettingsError(f"there is no format {name!r}: choose from {', '.join(names())}")
    return importlib.import_module(f"{forms.__name__}.{name}")


def export(run: Path, name: str, destination: Path) -> Path:
    """Writes the run in the folder ``run`` to ``destination``, a new folder that is there when all of it is.

    Raises SettingsError if ``destination`` exists, RunFolderError if it cannot be written, TrajectoryError for a
    damaged file.
    """
    destination = destination.expanduser().absolute()
    if os.path.lexists(destination):
        raise SettingsError(f"{destination} is there already; name a folder that is not, or move it away")
    module = form(name)
    refuse_unwritable("destination", destination, PathUse.output_folder)
    from digirl_dist.export.source import Source

    source = Source(run)
    try:
        destination.parent.mkdir(parents=True, exist_ok=True)
        part = Path(tempfile.mkdtemp(prefix=f".{destination.name}.", suffix=".part", dir=destination.parent))
        try:
            module.write(source, part)
            part.chmod(0o755)
            part.rename(destination)
        finally:
            shutil.rmtree(part, ignore_errors=True)
    except OSError as error:
        place = error.filename or destination
        raise RunFolderError(f"{place} cannot be read or written: {error.strerror or error}") from error
    return destination
