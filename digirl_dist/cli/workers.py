"""The commands ``setup`` and ``doctor``, which take the same configuration and overrides as a run."""

from __future__ import annotations

import argparse
import json
import sys
import threading
import time
from collections.abc import Sequence
from typing import TYPE_CHECKING

from digirl_dist.exit_status import exit_status
from digirl_dist.plain_text import printable

if TYPE_CHECKING:
    from digirl_dist.settings import Settings
    from digirl_dist.setup.prepare import SetupProgress

_SETUP = "prepare all workers over SSH: Python, the package, and what the emulator needs; a second run changes nothing"
_DOCTOR = "check whether a run would start: the host and every worker, with the remedy for each failure"


def setup(words: Sequence[str]) -> int:
    """Returns the exit status: 0 all are ready, 1 some are not, 2 wrong configuration."""
    parser = _parser("setup", _SETUP)
    parser.add_argument("--dry-run", action="store_true", help="only print what would be done")
    options = parser.parse_intermixed_args(words)
    return exit_status(lambda: _setup(_load(options), options.dry_run))


def doctor(words: Sequence[str]) -> int:
    """Returns the exit status: 0 a run would start, 1 it would not, 2 wrong configuration."""
    parser = _parser("doctor", _DOCTOR)
    parser.add_argument("--json", action="store_true", help="print a list of {worker, check, ok, detail, remedy}")
    parser.add_argument("--try", action="store_true", dest="try_emulators", help="also start one emulator per worker")
    options = parser.parse_intermixed_args(words)
    return exit_status(lambda: _doctor(_load(options), options.json, options.try_emulators))


def _parser(command: str, description: str) -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog=f"digirl-dist {command}", description=description)
    parser.add_argument("--config-path", default="config/multimachine", help="folder of the YAML files")
    parser.add_argument("--config-name", default="host", help="which of them, without .yaml")
    parser.add_argument("--emulator", help="the same as emulator=…")
    parser.add_argument("overrides", nargs="*", metavar="key=value", help="overrides of the configuration")
    return parser


def _load(options: argparse.Namespace) -> Settings:
    from digirl_dist.settings import configuration

    chosen = [f"emulator={options.emulator}"] if options.emulator else []
    return configuration.load(options.config_path, options.config_name, [*chosen, *options.overrides])


def _setup(settings: Settings, dry_run: bool) -> int:
    from digirl_dist.assembly import setup_doctor

    printer = _Printer()
    errors = setup_doctor.setup(settings, dry_run, printer.tell)
    for error in errors:
        print(f"error: {printable(str(error))}", file=sys.stderr)
    print(printer.summary(len(errors), dry_run))
    return 1 if errors else 0


def _doctor(settings: Settings, as_json: bool, try_emulators: bool) -> int:
    from digirl_dist.assembly import setup_doctor
    from digirl_dist.doctor.check import as_table, would_start

    checks = list(setup_doctor.doctor(settings, try_emulators))
    if as_json:
        print(json.dumps([check.to_json() for check in checks], indent=1, ensure_ascii=True))
    else:
        print(printable(as_table(checks)))
    return 0 if would_start(checks) else 1


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
