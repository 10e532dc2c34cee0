"""Reads a run folder for the report; a missing, incomplete or foreign file costs no more than a note."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from itertools import islice
from pathlib import Path
from typing import Any, TypeVar

from digirl_dist.errors import RunFolderError, SettingsError, TrajectoryError
from digirl_dist.settings.safe_yaml import read_yaml
from digirl_dist.storage import json_lines, parquet
from digirl_dist.storage.status import RunState, run_state
from digirl_dist.trajectory import Trajectory
from digirl_dist.types import Json

_EVENT_BYTES = 1 << 19
_TRAJECTORY_FILES = 3
_LOOKED_AT = 10
"""The page is also written at Ctrl-C."""
_Read = TypeVar("_Read")


@dataclass(frozen=True)
class RunRecord:
    """The parts of a run folder that a report shows."""

    config: dict[str, Json]
    metrics: list[dict[str, Json]]
    """One mapping per iteration, in order."""
    events: list[dict[str, Json]]
    """The newest events, in order."""
    trajectories: list[Trajectory]
    """Some episodes of the newest iteration whose file can be read, failures and successes."""
    state: RunState = RunState("unknown")  # noqa: RUF009 - frozen
    notes: list[str] = field(default_factory=list)
    """Files that could not be read, with the reason."""

    @classmethod
    def read(cls, folder: Path, episodes: int) -> RunRecord:
        """``episodes`` is how many are shown; the others of a file are not kept in memory."""
        notes: list[str] = []
        return cls(
            config=config_of(folder / "config.yaml", notes),
            metrics=noted(notes, metrics_of, folder / "metrics.jsonl") or [],
            events=noted(notes, json_lines.read, folder / "events.jsonl", _EVENT_BYTES) or [],
            trajectories=_newest_trajectories(folder / "trajectories", episodes, notes),
            state=run_state(folder),
            notes=notes,
        )


def noted(notes: list[str], read: Callable[..., _Read], *where: Any) -> _Read | None:
    """Returns what ``read`` returns; of a file that cannot be read a note is made, and nothing returned."""
    try:
        return read(*where)
    except RunFolderError as error:
        notes.append(str(error))
        return None


def number(value: object) -> float | None:
    """Returns ``value`` as a float that can be drawn; None if it is not a number, not finite or at least 1e30."""
    if isinstance(value, bool) or not isinstance(value, int | float):
        return None
    return float(value) if abs(value) < 1e30 and math.isfinite(value) else None


def config_of(path: Path, notes: list[str]) -> dict[str, Json]:
    if not path.exists():
        return {}
    try:
        content = read_yaml(path, path.name)
    except SettingsError as error:
        notes.append(str(error))
        return {}
    return content if isinstance(content, dict) else {}


def metrics_of(path: Path) -> list[dict[str, Json]]:
    """Reads the metrics; if an iteration was repeated after a crash, its later line counts. Raises RunFolderError."""
    lines = {line["iteration"]: line for line in json_lines.read(path) if type(line.get("iteration")) is int}
    return [lines[iteration] for iteration in sorted(lines)]


def _newest_trajectories(folder: Path, most: int, notes: list[str]) -> list[Trajectory]:
    for path in sorted(folder.glob("[0-9]*.parquet"), reverse=True)[:_TRAJECTORY_FILES]:
        try:
            if found := choose(parquet.stream(path), most):
                return found
        except TrajectoryError as error:
            notes.append(str(error))
    return []


def choose(episodes: Iterable[Trajectory], most: int) -> list[Trajectory]:
    """Chooses half failed and half successful episodes if there are enough of both; the failed ones come first.

    Takes no more of them than it needs, or ``_LOOKED_AT`` for each that is shown, and keeps no more than twice
    ``most``.
    """
    found: dict[bool, list[Trajectory]] = {False: [], True: []}
    for episode in islice(episodes, _LOOKED_AT * most):
        if len(found[episode.success]) < most:
            found[episode.success].append(episode)
        if len(found[False]) >= most - most // 2 and len(found[True]) >= most // 2:
            break
    failed, succeeded = found[False], found[True]
    successes = min(len(succeeded), max(most // 2, most - len(failed)))
    return failed[: most - successes] + succeeded[:successes]
