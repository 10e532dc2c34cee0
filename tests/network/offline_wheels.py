"""The packages that a worker without a way to the internet is to install, in a folder that it can read."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

from digirl_dist.fleet.install import host_versions, requirements


def collect_wheels(folder: Path, extras: set[str], further: Sequence[str] = ()) -> None:
    """In the host's versions, for its minor version of Python; pip's cache makes a second time quick."""
    folder.mkdir(parents=True, exist_ok=True)
    constraints = folder / "constraints.txt"
    constraints.write_text("\n".join(host_versions()) + "\n")
    pip = [sys.executable, "-m", "pip", "wheel", "--quiet", "--wheel-dir", str(folder)]
    subprocess.run(
        [*pip, "-c", str(constraints), *requirements(extras), *further], check=True, capture_output=True, text=True
    )
