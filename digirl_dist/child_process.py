"""Processes that this one starts with the same interpreter and package, and the end of what they logged."""

from __future__ import annotations

import os
from pathlib import Path

import digirl_dist

SOURCE = str(Path(digirl_dist.__file__).resolve().parent.parent)
"""The folder from which this package was imported."""


def environment() -> dict[str, str]:
    """Our environment, in which ``python -m digirl_dist…`` finds this package even if it is not installed."""
    inherited = os.environ.get("PYTHONPATH", "")
    paths = [SOURCE, *(path for path in inherited.split(os.pathsep) if path and path != SOURCE)]
    return {**os.environ, "PYTHONPATH": os.pathsep.join(paths)}


def last_lines(log: Path, count: int = 5) -> str:
    """The last lines of a log for an error message, or nothing."""
    try:
        lines = log.read_text(errors="replace").splitlines()[-count:]
    except OSError:
        return ""
    return "; its last lines: " + " | ".join(lines) if lines else ""
