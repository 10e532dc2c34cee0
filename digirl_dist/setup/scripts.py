"""The shell scripts in ``worker/`` that one emulator needs, and their environment variables."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path

import digirl_dist
from digirl_dist.emulator.plugins import EmulatorPlugin
from digirl_dist.fleet.install import installed_python
from digirl_dist.fleet.roster import WorkerConfig
from digirl_dist.settings import EmulatorSettings, InstallSettings


@dataclass(frozen=True)
class Steps:
    """Bash scripts and their environment: ``script`` runs before the package is installed, ``after`` runs after it."""

    script: str
    after: str = ""
    variables: dict[str, str] = field(default_factory=dict)


def steps(emulator: EmulatorSettings, worker_config: WorkerConfig, install: InstallSettings, dry_run: bool) -> Steps:
    """Returns the scripts of one worker. An emulator without its own script needs only Python."""
    folder = _folder()
    frame = (folder / "steps.sh").read_text("utf-8")
    name = (isinstance(emulator, EmulatorPlugin) and emulator.machine) or emulator.name
    own, after = (_text(folder / place / f"{name}.sh") for place in ("emulators", "after"))
    variables = {
        "PYTHON": worker_config.python,
        "PACKAGE_PYTHON": installed_python(worker_config.run_path),
        "DRY_RUN": "yes" if dry_run else "",
    }
    if isinstance(emulator, EmulatorPlugin):
        told = emulator.setup_variables(install)
        variables |= {name: value for name, value in told.items() if value}
    before = "\n".join([frame, (folder / "python.sh").read_text("utf-8"), own])
    return Steps(before, f"{frame}\n{after}" if after else "", variables)


def _text(path: Path) -> str:
    return path.read_text("utf-8") if path.is_file() else ""


def _folder() -> Path:
    """Returns the folder of scripts: in the wheel, else in the checkout."""
    package = Path(digirl_dist.__file__).resolve().parent
    inside = package / "worker"
    return inside if inside.is_dir() else package.parent / "worker"
