"""Other processes of this machine with the same interpreter and the same copy of this package."""

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
