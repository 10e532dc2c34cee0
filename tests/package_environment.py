"""Environments for packages whose dependencies contradict ours, each below build/trainers, where it is kept."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent


def python_with(name: str, *packages: str, and_ours: bool) -> Path:
    """Returns a Python with the packages from their registry; ``and_ours``: also what this Python has, behind it."""
    place = ROOT / "build" / "trainers" / name
    python = place / "bin" / "python"
    if not (place / "made").exists():
        uv = [sys.executable, "-m", "uv"]
        subprocess.run([*uv, "venv", "-q", "--clear", "--python", sys.executable, place], check=True)
        if and_ours:
            [own] = place.glob("lib/python*/site-packages")
            ours = next(path for path in map(Path, sys.path) if path.name == "site-packages")
            (own / "ours.pth").write_text(f"import site; site.addsitedir({str(ours)!r})\n")
        subprocess.run([*uv, "pip", "install", "-q", "--python", python, *packages], check=True)
        (place / "made").touch()
    return python
