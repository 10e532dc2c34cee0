"""Makes the runs, by the entry that everybody uses."""

from __future__ import annotations

import subprocess
import sys
import time
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from benchmarks.results.plan import Run, measurements_of
from benchmarks.results.reading import measured, read

ROOT = Path(__file__).resolve().parents[2]


def finish(runs: Sequence[Run], processes: int) -> int:
    """Each run that is not finished is begun, or goes on where it stopped, and is measured. How many failed.

    So many at a time; those that begin with what others learned or stored come when all others are done.
    """
    once = list({run.folder: run for run in runs}.values())
    with ThreadPoolExecutor(processes) as pool:
        rounds = [[run for run in once if run.series.follows == follows] for follows in (False, True)]
        return sum(not done for own in rounds for done in pool.map(_finished, own))


def _finished(run: Run) -> bool:
    begun = read(run)
    if begun is None or not begun.finished:
        print(f"== {time.strftime('%H:%M:%S')} {run.folder}", flush=True)
        if not _made(run.folder, "host", run.overrides()):
            return False
    missing = [one for one in measurements_of(run) if measured(one) is None]
    return all(_made(one.folder, "eval", one.overrides()) for one in missing)


def _made(folder: Path, config: str, overrides: Sequence[str]) -> bool:
    status = started(folder, config, overrides).wait()
    if status:
        print(f"   failed with status {status}; {folder / 'output.log'} says why", file=sys.stderr)
    return status == 0


def started(folder: Path, config: str, overrides: Sequence[str]) -> subprocess.Popen[bytes]:
    """Starts a run whose output goes to ``output.log`` in its folder."""
    folder.mkdir(parents=True, exist_ok=True)
    command = [sys.executable, "run.py", "--config-path", "config/multimachine", "--config-name", config]
    with open(folder / "output.log", "a") as output:
        return subprocess.Popen([*command, *overrides], cwd=ROOT, stdout=output, stderr=subprocess.STDOUT)
