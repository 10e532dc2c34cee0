"""Training from Python, with the settings of the command line."""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping
from typing import Any

from digirl_dist.api import arguments
from digirl_dist.api.run import Run
from digirl_dist.errors import TrainingError
from digirl_dist.exit_status import interruptions_wait
from digirl_dist.parallel.rank import launched_rank
from digirl_dist.settings import Settings
from digirl_dist.settings.keys import quoted, written
from digirl_dist.settings.places import HERE
from digirl_dist.settings.unread import refuse_others_overrides
from digirl_dist.user_code.entry_point import derives_from

_OWN = ("emulator", "agent", "algorithm")
"""For these a class of the user's may stand."""


def train(config: str = "host", /, *, config_path: str = HERE, resume: bool = False, **settings: Any) -> Run:
    """Trains like ``digirl-dist run --config-name CONFIG key=value …``, and returns the run.

    ``settings`` are the keys of the configuration. A group is a mapping whose ``name`` chooses the option:
    ``train(dry_run=True, emulator={"name": "gymnasium", "id": "CartPole-v1"}, agent="generic")``. A class of yours is
    an ``emulator``, ``agent`` or ``algorithm`` by itself, or with arguments:
    ``algorithm={"entry_point": MyAlgorithm, "kwargs": {"learning_rate": 0.02}}``. Calling it again continues the run
    in ``save_path``; without one, as the command with ``--resume`` does, or without it.

    Raises SettingsError before anything starts, and other DigirlDistErrors as in docs/dev/testing.md.
    """
    from digirl_dist.assembly import validate
    from digirl_dist.assembly.parts import choose_folder
    from digirl_dist.assembly.trainers import on_ranks, starts_ranks
    from digirl_dist.settings.configuration import Source

    composed, rank = compose(config, settings, config_path), launched_rank(os.environ)
    words = list(overrides(settings))
    refuse_others_overrides(words, ranks=False)
    choose_folder(composed, rank, resume)
    validate.refuse_before_start(composed, rank)
    if starts_ranks(composed, rank):
        words.append(f"save_path={quoted(composed.save_path)}")
        if status := on_ranks(composed, Source(str(config_path), config, tuple(words)).words):
            raise TrainingError(f"the ranks ended with status {status}, and have printed why; a repeated call resumes")
    else:
        with interruptions_wait():
            from digirl_dist.assembly import run

        run.run(composed)
    return Run(composed.save_path)


def compose(config: str, settings: Mapping[str, Any], config_path: str = HERE) -> Settings:
    """Returns the configuration with these settings. Raises SettingsError naming what is wrong."""
    from digirl_dist.settings import configuration

    arguments.of_kind("config", config, str, "the name of a YAML file, as 'host'; settings are keywords")
    arguments.of_kind("config_path", config_path, (str, os.PathLike), "the path of a folder")
    return configuration.load(str(config_path), config, list(overrides(settings)))


def overrides(settings: Mapping[str, Any], group: str = "") -> Iterator[str]:
    """Yields settings in the grammar of the command line; an option's choice comes before its values."""
    for key, value in settings.items():
        name = f"{group}{key}"
        value = _with_choice(name, value)
        if not (isinstance(value, Mapping) and value) or any(
            not (isinstance(each, str) and each.isascii() and each.isidentifier()) for each in value
        ):  # a key that the grammar does not have between dots
            yield f"{name}={written(value)}"
        elif "name" in value and not group:
            yield f"{name}={value['name']}"
            yield from overrides({each: value[each] for each in value if each != "name"}, f"{name}.")
        else:
            yield from overrides(value, f"{name}.")


def _with_choice(key: str, value: Any) -> Any:
    """Returns the option that a class of the user's stands for, by itself or as an entry point; else the value."""
    given = value if isinstance(value, Mapping) else {"entry_point": value}
    if key not in _OWN or not isinstance(kind := given.get("entry_point"), type):
        return value
    chosen = {"name": "gymnasium" if derives_from(kind, "gymnasium") else "custom"}
    return {**(chosen if key != "algorithm" else {}), **given}
