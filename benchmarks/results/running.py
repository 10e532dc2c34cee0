"""Makes the runs, by the entry that everybody uses."""

from __future__ import annotations

import subprocess
import sys
import time
from collections.abc import Sequence
from pathlib import Path

from benchmarks.results.plan import Run
from benchmarks.results.reading import read

_ROOT = Path(__file__).resolve().parents[2]


def finish(runs: Sequence[Run]) -> int:
    """Each run that is not finished is begun, or goes on where it stopped. How many failed."""
    failed = 0
    for number, run in enumerate(runs, 1):
        begun = read(run)
        if begun is not None and begun.finished:
            continue
        print(f"== {number}/{len(runs)} {time.strftime('%H:%M:%S')} {run.folder}", flush=True)
        failed += not _made(run)
    return failed


def _made(run: Run) -> bool:
    run.folder.mkdir(parents=True, exist_ok=True)
    log = run.folder / "output.log"
    command = [sys.executable, "run.py", "--config-path", "config/multimachine", "--config-name", "host"]
    with open(log, "a") as output:
        done = subprocess.run([*command, *run.overrides()], cwd=_ROOT, stdout=output, stderr=subprocess.STDOUT)
    if done.returncode:
        print(f"   failed with status {done.returncode}; {log} says why", file=sys.stderr)
    return done.returncode == 0
