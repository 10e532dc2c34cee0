"""Loggers: tools that draw curves. ``loggers=[NAME, …]`` chooses them.

A module of this folder has ``build(name, run)``, which returns a ``Logger``, and imports nothing heavy at its top. The
logger's package, and the extra that installs it, have its name, unless the module says ``PACKAGE = None``.
"""

from __future__ import annotations

import base64
import importlib
import pkgutil
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from hashlib import sha256
from importlib.util import find_spec
from pathlib import Path
from types import ModuleType
from typing import Protocol

from digirl_dist.types import Json, T

_LIKE = {"trackio": "wandb"}
"""Loggers that have the interface of another one, whose module is theirs as well."""

_LONGEST_PART, _LONGEST_NAME = 100, 200
"""Characters; MLflow takes names of 250."""


class Logger(Protocol):
    """A tool that draws curves and shows episodes."""

    def figures(self, figures: dict[str, float], step: int) -> None:
        """Adds the next point of each curve; names are grouped, as in ``learning/success_rate``."""

    def episodes(self, rows: Sequence[dict[str, Json]], step: int) -> None:
        """Adds an iteration's episodes (see ``logged.rows``); some have a ``picture``, a PNG file in base64."""

    def close(self) -> str | None:
        """Flushes what is pending. Returns the folder or server where the run is, unless the tool tells it itself."""


@dataclass(frozen=True)
class LoggedRun:
    """The run as loggers know it."""

    run_id: str
    name: str
    folder: Path
    project: str
    config: dict[str, Json]
    """Settings by dotted name, secrets redacted."""
    purge: int | None = None
    """The first step that a former process logged and that is made again, if there is one."""


def names() -> list[str]:
    """Returns the loggers that can be chosen, in alphabetical order; imports nothing."""
    return sorted([*_LIKE, *(module.name for module in pkgutil.iter_modules(__path__))])


def is_installed(name: str) -> bool:
    """Whether the package of a logger is there, if it needs one."""
    package = getattr(_module(name), "PACKAGE", name)
    return package is None or find_spec(package) is not None


def build(name: str, run: LoggedRun) -> Logger:
    """Raises whatever the logger's library raises."""
    made: Logger = _module(name).build(name, run)
    return made


def _module(name: str) -> ModuleType:
    return importlib.import_module(f"{__name__}.{_LIKE.get(name, name)}")


def rewinds(name: str) -> bool:
    """Whether its files lie in the run folder: steps that are made again replace those before, also in a copy."""
    return name == "tensorboard"


def plain_names(named: Mapping[tuple[str, ...], T]) -> dict[str, T]:
    """Returns values by names that all loggers take: the parts, cleaned, with slashes between them.

    A name that would be another's, lie below another (which is a file of MLflow's) or be too long gets a digest.
    """
    plain = {parts: "/".join(map(_plain, parts)) for parts in named}
    names, found = set(plain.values()), {}
    for parts in sorted(plain, key=lambda each: (plain[each] != "/".join(each), each)):  # unchanged names come first
        name = plain[parts]
        above = ("/".join(name.split("/")[:count]) for count in range(1, name.count("/") + 1))
        if name in found or len(name) > _LONGEST_NAME or any(each in names for each in above):
            mark = sha256("/".join(parts).encode(errors="replace")).hexdigest()[:8]
            name = f"{name.replace('/', '_')[:_LONGEST_NAME]}-{mark}"
        found[name] = named[parts]
    return found


def _plain(part: str) -> str:
    """Returns a part of a name in characters that all loggers take; dots alone are a folder to some."""
    return re.sub(r"[^\w.\- ]", "_", part).strip(". ")[:_LONGEST_PART] or "_"


def pictures(rows: Sequence[dict[str, Json]]) -> Iterator[tuple[str, bytes, dict[str, Json]]]:
    """Yields ``success`` or ``failure``, the PNG file, and the row of each episode that has a picture."""
    for row in rows:
        if "picture" in row:
            yield "success" if row["success"] else "failure", base64.b64decode(row["picture"]), row
