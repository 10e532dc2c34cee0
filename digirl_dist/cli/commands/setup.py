"""Prepares all workers over SSH: Python, the package, what the emulator needs. A second run changes nothing."""

from __future__ import annotations

import argparse
import sys
from collections import Counter
from typing import TYPE_CHECKING

from digirl_dist.cli.configured import add_configuration, add_emulator, settings_of
from digirl_dist.exit_status import end_by_signals_as_by_ctrl_c
from digirl_dist.plain_text import printable
from digirl_dist.report.output import shown

if TYPE_CHECKING:
    from digirl_dist.setup.prepare import SetupProgress


def add_arguments(parser: argparse.ArgumentParser) -> None:
    add_configuration(parser)
    add_emulator(parser)
    parser.add_argument("--dry-run", action="store_true", help="only print what would be done")


def execute(options: argparse.Namespace) -> int:
    """Returns 0 if all are ready, 1 if some are not."""
    counts: Counter[str] = Counter()
    end_by_signals_as_by_ctrl_c()
    with shown("read the configuration", sys.stdout) as progress:
        settings = settings_of(options)
        from digirl_dist.assembly import setup_doctor

        def tell(told: SetupProgress) -> None:
            counts[told.state] += 1
            text = f"{told.step}: {told.message}" if told.message else told.step
            progress.say(f"{told.worker:<16} {told.state:<6} {text}", "red" if told.state == "failed" else "")

        progress.status.host("prepare the workers")
        errors = setup_doctor.setup(settings, options.dry_run, tell, progress.status)
    for error in errors:
        print(f"error: {printable(str(error))}", file=sys.stderr)
    print(_summary(counts, len(errors), options.dry_run))
    return 1 if errors else 0


def _summary(counts: Counter[str], failures: int, dry_run: bool) -> str:
    changed = f"{counts['would']} steps would be done" if dry_run else f"{counts['done']} steps done"
    ready = "no failure" if dry_run else "all workers are ready"
    verdict = f"workers that failed: {failures}" if failures else ready
    return f"{changed}, {counts['ok']} were done before; {verdict}"
