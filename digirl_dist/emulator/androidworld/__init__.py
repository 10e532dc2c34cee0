"""AndroidWorld's task suites, as its own registry has them, and the parameters of one task's instance.

Its package, which is on no registry of Python's, is imported when a suite is asked for.
"""

from __future__ import annotations

import random
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

import numpy as np

from digirl_dist.errors import EmulatorError, SettingsError
from digirl_dist.plain_text import in_short, near_it
from digirl_dist.tasks import Task

Suite = Mapping[str, Any]
"""The class of each task (a ``TaskEval``), by its name."""

_STEPS_PER_COMPLEXITY = 10
"""As ``suite_utils._allocate_step_budget`` has it."""


@contextmanager
def package_needed() -> Iterator[None]:
    """Imports of AndroidWorld. Raises SettingsError with the remedy in place of their ImportError."""
    try:
        yield
    except ImportError as error:
        raise SettingsError(
            "emulator=androidworld needs the package android_world, which is on no registry, here and on the workers: "
            f"docs/android.md has the script that installs it, for emulator.setup, too ({error})"
        ) from error


def suite(family: str) -> Suite:
    """Returns a suite. Raises SettingsError for one that does not exist, or without the package."""
    with package_needed():
        from android_world import registry
    families = registry.get_families()
    if family not in families:
        raise SettingsError(f"emulator.family={family} is no suite of AndroidWorld's; there are {', '.join(families)}")
    found: Suite = registry.TaskRegistry().get_registry(family)
    return found


def androidworld_tasks(family: str, task: str | Sequence[str]) -> list[Task]:
    """Returns the tasks of a suite that ``task`` names. Raises SettingsError for an unknown one, with the nearest."""
    there = suite(family)
    names = [name.strip() for name in (task.split(",") if isinstance(task, str) else task) if name.strip()]
    if not names:
        raise SettingsError("emulator.task names no task of AndroidWorld's; ClockTimerEntry is one")
    return [Task(known(name, there)) for name in (there if names == ["all"] else names)]


def every_task(family: str) -> list[Task]:
    """Returns all tasks of the suite."""
    return [Task(name) for name in suite(family)]


def known(name: str, there: Suite) -> str:
    """Returns ``name``. Raises SettingsError if the suite has no such task, with the nearest ones."""
    if name in there:
        return name
    hint = near_it(name, there)
    raise SettingsError(
        f"{name!r} is no task of this suite of AndroidWorld's{hint}; 'all' alone stands for all {len(there)}"
    )


def instance(name: str, there: Suite, seed: int) -> Any:
    """Returns the ``TaskEval`` of an episode, whose parameters follow from ``seed``.

    They come from Python's own generator, as ``suite_utils._instantiate_task`` has it; this process's is set.
    """
    kind = there[known(name, there)]
    kind.set_device_time(None)
    random.seed(seed)
    np.random.seed(seed % 2**32)  # the pictures and films that some tasks put on the device
    return kind({**kind.generate_random_params(), "seed": seed})


def steps_allowed(task: Any) -> int:
    """Returns AndroidWorld's limit on the steps of an episode, about twice what a person takes."""
    return int(_STEPS_PER_COMPLEXITY * task.complexity)


@contextmanager
def blamed(doing: str) -> Iterator[None]:
    """What AndroidWorld raises becomes an EmulatorError."""
    try:
        yield
    except EmulatorError:
        raise
    except Exception as error:
        reason = in_short(error, 500)
        raise EmulatorError(f"AndroidWorld could not {doing}: {type(error).__name__}: {reason}") from error
