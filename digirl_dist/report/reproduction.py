"""Compares a run with one that was made again from its configuration: tickets, and figures that follow from them."""

from __future__ import annotations

import math
import re
from collections.abc import Iterator, Mapping
from pathlib import Path

from digirl_dist.report.metrics import Figures, Metrics
from digirl_dist.storage import json_lines, parquet
from digirl_dist.types import Json

_OF_THE_MACHINE = re.compile(
    r"time$|_s$|_s_mean$|_bytes$|_by_worker$|^slot_seconds|^emulator_busy$|^collect_busy$|^episodes_retried$|^workers_lost$|^judge"
)
_ROUNDING = 1e-6
"""Policies compute in float32, and batches hold whatever slots ask at the same time: that rounds the last digits."""
_OF_THE_START = ("path", "uncommitted", "name", "memory_bytes")
_TICKET = ["iteration", "ticket", "purpose", "task", "seed"]

Ticket = tuple[tuple[str, Json], ...]


def tickets_of(run: Path, iterations: int) -> set[Ticket]:
    """Returns the tickets whose episodes a run folder holds, of its first iterations. Raises TrajectoryError."""
    found: set[Ticket] = set()
    for path in sorted((run / "trajectories").glob("[0-9]*.parquet"))[:iterations]:
        with parquet.opened(path) as file:
            columns = [name for name in _TICKET if name in file.columns]
            rows = file.read(columns).to_pylist()
        found.update(tuple((name, str(row[name])) for name in columns) for row in rows if row["iteration"] < iterations)
    return found


def differences(one: Path, other: Path, iterations: int) -> list[str]:
    """Returns how the figures of two runs differ in their first iterations; not in durations, bytes or losses."""
    told: list[str] = []
    lines = [Metrics(run / "metrics.jsonl").lines[:iterations] for run in (one, other)]
    if len(lines[0]) != len(lines[1]):
        return [f"{len(lines[0])} iterations and {len(lines[1])}"]
    for first, second in zip(*lines, strict=True):
        told += _differences(first, second)
    return told


def conditions(one: Path, other: Path) -> list[str]:
    """Returns in what versions, commits and machines the first starts of two runs differ."""
    starts = [json_lines.read(run / "provenance.jsonl")[:1] for run in (one, other)]
    if not all(starts):
        return ["it is not recorded"]
    first, second = (dict(_conditions(start[0])) for start in starts)
    keys = sorted(key for key in {*first, *second} if first.get(key) != second.get(key))
    return [f"{key} {first.get(key, 'none')}, now {second.get(key, 'none')}" for key in keys]


def _conditions(start: Mapping[str, Json]) -> Iterator[tuple[str, Json]]:
    yield "version", start.get("version")
    for part in ("package", "working_directory", "host", "packages"):
        for name, value in found.items() if isinstance(found := start.get(part), dict) else ():
            if name not in _OF_THE_START:
                yield f"{part}.{name}", value


def _differences(first: Figures, second: Figures) -> list[str]:
    keys = [key for key in first if key in second and not _OF_THE_MACHINE.search(key)]
    return [
        f"iteration {first['iteration']}: {key} {first[key]} and {second[key]}"
        for key in keys
        if not _equal(first[key], second[key])
    ]


def _equal(one: Json, other: Json) -> bool:
    if isinstance(one, float) and isinstance(other, float):
        return math.isclose(one, other, rel_tol=_ROUNDING, abs_tol=1e-12)
    return bool(one == other)
