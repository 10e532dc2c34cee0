"""Evaluates the newest checkpoint of a run on the test tasks, on the same workers: eval runs/mine.

With a run folder, the configuration is that run's own; without one, it is eval.yaml of --config-path.
"""

from __future__ import annotations

import argparse

from digirl_dist.cli.configured import add_configuration, add_trust, of_run_folder, source_of
from digirl_dist.cli.running import run
from digirl_dist.errors import SettingsError
from digirl_dist.settings.paths import expanded
from digirl_dist.settings.places import HERE

_NAME = "eval"
_MEASURES = ("task_mode=evaluate", "task_split=test", "task_order=sequential")


def add_arguments(parser: argparse.ArgumentParser) -> None:
    add_configuration(parser, _NAME)
    add_trust(parser)


def execute(options: argparse.Namespace) -> int:
    words = options.overrides
    if words and ("=" not in words[0] or expanded(words[0]).is_dir()):
        if (options.config_path, options.config_name) != (HERE, _NAME):
            raise SettingsError(
                f"eval {words[0]} takes the run's own configuration: leave out --config-path and --config-name"
            )
        return run(of_run_folder(expanded(words[0]), (*_MEASURES, *words[1:]), options.trust), watched=False)
    if options.trust:
        raise SettingsError("--trust is for the folder of a run, as in: eval runs/mine --trust; leave it out")
    return run(source_of(options))
