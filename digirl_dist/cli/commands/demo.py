"""Trains on a drawn phone, on this machine alone: two localhost workers behind real SSH servers, runs/demo."""

from __future__ import annotations

import argparse

from digirl_dist.cli.configured import add_overrides
from digirl_dist.cli.running import run
from digirl_dist.settings.places import HERE


def add_arguments(parser: argparse.ArgumentParser) -> None:
    add_overrides(parser)


def execute(options: argparse.Namespace) -> int:
    from digirl_dist.settings.configuration import Source

    return run(Source(HERE, "host", ("dry_run=true", "save_path=runs/demo", *options.overrides)))
