"""Checks whether a run would start: the host and every worker, with the remedy for each failure."""

from __future__ import annotations

import argparse
import json
import sys

from digirl_dist.cli.configured import add_configuration, add_emulator, settings_of
from digirl_dist.plain_text import printable, without_secrets_in
from digirl_dist.report.output import shown
from digirl_dist.settings.unread import refuse_others_overrides


def add_arguments(parser: argparse.ArgumentParser) -> None:
    add_configuration(parser)
    add_emulator(parser)
    parser.add_argument("--json", action="store_true", help="print a list of {worker, check, ok, detail, remedy}")
    parser.add_argument("--try", action="store_true", dest="try_emulators", help="also start one emulator per worker")


def execute(options: argparse.Namespace) -> int:
    """Returns 0 if a run would start, 1 if it would not."""
    with shown("read the configuration", sys.stderr) as progress:
        from digirl_dist.assembly import setup_doctor
        from digirl_dist.doctor.check import as_table, would_start

        settings = settings_of(options)
        refuse_others_overrides(options.overrides, ranks=False)
        progress.status.host("examine the host and the workers")
        checks = list(setup_doctor.doctor(settings, options.try_emulators, progress.status))
    if options.json:
        print(json.dumps(without_secrets_in([check.to_json() for check in checks]), indent=1, ensure_ascii=True))
    else:
        print(printable(as_table(checks)))
    return 0 if would_start(checks) else 1
