"""Loggers: one file per tool that draws curves. ``loggers=[NAME, …]`` chooses them.

A file has ``build(run)``, which returns a ``Logger``, ``PACKAGE``, what it imports, and ``ISOLATED``: whether it runs
in a process of its own, because a server may be away. It imports nothing heavy at its top.
"""

from __future__ import annotations

import base64
import importlib
import io
import pkgutil
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from types import ModuleType
from typing import Any, Protocol

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

    is_copy: bool = False
    """Whether this start found the folder to be a copy: its steps are known under the id of the original."""

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


def pictures(rows: Sequence[dict[str, Json]]) -> Iterator[tuple[str, bytes, dict[str, Json]]]:
    """Yields ``success`` or ``failure``, the PNG file, and the row of each episode that has a picture."""
    for row in rows:
        if "picture" in row:
            yield "success" if row["success"] else "failure", base64.b64decode(row["picture"]), row


def panels(
    rows: Sequence[dict[str, Json]], columns: Sequence[str], image: Callable[..., Any], table: Callable[..., Any]
) -> dict[str, Any]:
    """Returns an iteration's episodes as a tool's own ``table``, and its ``image`` of each that has a picture."""
    from PIL import Image

    shown = {
        f"episodes/{kind}": image(Image.open(io.BytesIO(png)), caption=str(row["task"]))
        for kind, png, row in pictures(rows)
    }
    data = [[row[column] for column in columns] for row in rows]
    return {"episodes/all": table(columns=list(columns), data=data), **shown}


def module(name: str) -> ModuleType:
    return importlib.import_module(f"{__name__}.{name}")
