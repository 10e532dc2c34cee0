"""Loggers: one file per tool that draws curves. ``loggers=[NAME, …]`` chooses them.

A file has ``build(run)``, which returns a ``Logger``, ``PACKAGE``, what it imports, and ``ISOLATED``: whether it runs
in a process of its own, because a server may be away. It imports nothing heavy at its top.
"""

from __future__ import annotations

import importlib
import pkgutil
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from types import ModuleType
from typing import Protocol

from digirl_dist.types import Json


class Logger(Protocol):
    """A tool that draws curves and shows episodes."""

    def figures(self, figures: dict[str, float], step: int) -> None:
        """Adds the next point of each curve; names are grouped, as in ``learning/success_rate``."""

    def episodes(self, rows: Sequence[dict[str, Json]], step: int) -> None:
        """Adds an iteration's episodes (see ``logged.rows``); some have a ``picture``, a PNG file in base64."""

    def close(self) -> None:
        """Flushes what is pending."""


@dataclass(frozen=True)
class LoggedRun:
    """The run as loggers know it."""

    run_id: str
    name: str
    folder: str
    """The run folder."""
    project: str
    config: dict[str, Json]
    """Settings by dotted name, secrets redacted."""
    purge: int | None = None
    """The first step that a former process logged and that is made again, if there is one."""

    @property
    def root(self) -> Path:
        return Path(self.folder)


def names() -> list[str]:
    """Returns the loggers that there are."""
    return sorted(module.name for module in pkgutil.iter_modules(__path__))


def hand(logger: Logger, kind: str, content: Json, step: int) -> None:
    """Hands a logger ``episodes``, or figures of another kind."""
    if kind == "episodes":
        logger.episodes(content, step)
    else:
        logger.figures(content, step)


def module(name: str) -> ModuleType:
    return importlib.import_module(f"{__name__}.{name}")
