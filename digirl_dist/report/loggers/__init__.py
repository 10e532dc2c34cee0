"""Loggers: one file per tool that draws curves. ``loggers=[NAME, …]`` chooses them.

A file has ``build(run)``, which returns a ``Logger``, ``PACKAGE``, what it imports, and ``ISOLATED``: whether it runs
in a process of its own, because a server may be away. It imports nothing heavy at its top.
"""

from __future__ import annotations

import base64
import importlib
import io
import pkgutil
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from hashlib import sha256
from pathlib import Path
from types import ModuleType
from typing import Any, Protocol, TypeVar

from digirl_dist.types import Json

T = TypeVar("T")

_LONGEST_PART, _LONGEST_NAME = 100, 200
"""Characters; MLflow takes names of 250."""


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
    cleaned = re.sub(r"[^\w.\- ]", "_", part).strip(". ")
    return cleaned[:_LONGEST_PART] or "_"


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
