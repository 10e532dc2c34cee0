"""Evaluates a list of policies, in one process or under torchrun: eval-jobs --eval_jobs_config jobs.json."""

from __future__ import annotations

import argparse


def add_arguments(parser: argparse.ArgumentParser) -> None:
    from digirl_dist.evaluate import eval_runner

    eval_runner.add_arguments(parser)


def execute(options: argparse.Namespace) -> int:
    from digirl_dist.evaluate import eval_runner

    return eval_runner.execute(options)
