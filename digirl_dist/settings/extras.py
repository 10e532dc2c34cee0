"""The optional parts of the package, where one of them is missing."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from digirl_dist.errors import SettingsError


@contextmanager
def extra_needed(chosen: str, packages: str, extra: str) -> Iterator[None]:
    """Imports that need an extra. Raises SettingsError with its installation in place of their ImportError."""
    try:
        yield
    except ImportError as error:
        raise SettingsError(f"{chosen} needs {packages}: pip install 'digirl_dist[{extra}]' ({error})") from error
