"""Trains on this host, and collects on the workers in worker_ips or on this machine."""

from __future__ import annotations

import argparse

from digirl_dist.cli.configured import add_configuration, source_of
from digirl_dist.cli.running import run


def add_arguments(parser: argparse.ArgumentParser) -> None:
    add_configuration(parser)


def execute(options: argparse.Namespace) -> int:
    return run(source_of(options))
