"""Prepares all workers over SSH: Python, the package, what the emulator needs; a second time it changes nothing."""

from __future__ import annotations

import argparse
import sys
import threading
import time
from typing import TYPE_CHECKING

from digirl_dist.cli.configured import add_configuration, add_emulator, settings_of
from digirl_dist.plain_text import printable

if TYPE_CHECKING:
    from digirl_dist.setup.prepare import SetupProgress


def add_arguments(parser: argparse.ArgumentParser) -> None:
    add_configuration(parser)
    add_emulator(parser)
    parser.add_argument("--dry-run", action="store_true", help="only print what would be done")


def execute(options: argparse.Namespace) -> int:
    """Returns 0 if all are ready, 1 if some are not."""
    settings = settings_of(options)
    from digirl_dist.assembly import setup_doctor

    printer = _Printer()
    errors = setup_doctor.setup(settings, options.dry_run, printer.tell)
    for error in errors:
        print(f"error: {printable(str(error))}", file=sys.stderr)
    print(printer.summary(len(errors), options.dry_run))
    return 1 if errors else 0


class _Printer:
    """Prints a line per step of all workers as it happens."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._started = time.monotonic()
        self._counts = {"ok": 0, "done": 0, "would": 0}

    def tell(self, progress: SetupProgress) -> None:
        with self._lock:
            if progress.state in self._counts:
                self._counts[progress.state] += 1
            passed_s = time.monotonic() - self._started
            text = f"{progress.step}: {progress.message}" if progress.message else progress.step
            print(f"{passed_s:6.1f} s  {progress.worker:<16} {progress.state:<6} {printable(text)}", flush=True)

    def summary(self, failures: int, dry_run: bool) -> str:
        changed = f"{self._counts['would']} steps would be done" if dry_run else f"{self._counts['done']} steps done"
        verdict = f"{failures} workers failed" if failures else "all workers are ready" if not dry_run else "no failure"
        return f"{changed}, {self._counts['ok']} were done before; {verdict}"
