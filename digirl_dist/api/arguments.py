"""Checks arguments of the public interface; a refusal names the argument and shows a valid example."""

from __future__ import annotations

import operator
import os
from contextlib import suppress
from pathlib import Path
from typing import Any

from digirl_dist.errors import SettingsError
from digirl_dist.settings.paths import expanded
from digirl_dist.types import T


def folder(name: str, given: str | os.PathLike[str]) -> Path:
    """Returns a path with ``~`` expanded. Raises TypeError if it is none, SettingsError for an unknown user's home."""
    return expanded(of_kind(name, given, (str, os.PathLike), "the path of a folder, as 'runs/demo'"), name)


def of_kind(name: str, given: T, kind: Any, wanted: str) -> T:
    """Returns ``given`` if it is an instance of a class, or of one of several. Raises TypeError naming what is
    ``wanted``."""
    if isinstance(given, kind):
        return given
    raise TypeError(f"{name} must be {wanted}, not {given!r:.80}")


def whole(name: str, number: int, least: int, most: int | None = None) -> int:
    """Returns a whole number, NumPy's included, as a plain int. Raises SettingsError for anything else."""
    with suppress(TypeError):
        plain = operator.index(number)
        if plain >= least and (most is None or plain <= most):
            return plain
    bounds = f"of at least {least}" if most is None else f"from {least} to {most:,}"
    raise SettingsError(f"{name}={number!r:.100} is no whole number {bounds}")


def name(argument: str, given: str, most: int = 1000) -> str:
    """Returns a name of the caller's own. Raises SettingsError for one that is no text, or too long to be kept."""
    if isinstance(given, str) and 0 < len(given) <= most and not any("\ud800" <= each <= "\udfff" for each in given):
        return given
    raise SettingsError(f"{argument}={given!r:.80} is no text of 1 to {most:,} characters, without lone surrogates")
