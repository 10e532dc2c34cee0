"""What is collected, how far ahead, and which data an update sees, as the training modes have it."""

from __future__ import annotations

from collections.abc import Sequence

from digirl_dist.assembly.parts import algorithm_plugin, tasks_of
from digirl_dist.errors import SettingsError
from digirl_dist.settings import Settings, TaskMode, TaskSplit, TrainMode
from digirl_dist.settings.run import only_measures
from digirl_dist.tasks import Plan, Purpose, Task


def offline_iterations(settings: Settings) -> int:
    """Returns how many updates are made before anything is collected; none where nothing is learned."""
    if only_measures(settings):
        return 0
    match settings.train_mode:
        case TrainMode.online:
            return 0
        case TrainMode.offline:
            return settings.train_iterations
        case TrainMode.offline_to_online | TrainMode.off2on:
            return settings.offline.iterations


def iterations_ahead(settings: Settings) -> int:
    """Iterations to collect ahead: none where nothing is learned."""
    return 0 if only_measures(settings) else settings.ahead


def plan(settings: Settings, tasks: Sequence[Task]) -> Plan:
    """Returns the tickets of an iteration, or of a round of measurements, which have seeds of their own."""
    purpose: Purpose = "measure" if only_measures(settings) else "train"
    size, seed, order = settings.rollout_size, settings.seed, settings.task_order.value
    if settings.task_mode is TaskMode.evaluate:
        return Plan(tasks, size, seed, order, share="test", purpose=purpose)
    return Plan(tasks, size, seed, order, algorithm_plugin(settings).episodes_per_start, purpose=purpose)


def evaluation_plan(settings: Settings) -> Plan:
    """Returns the tickets of each evaluation while training: the test split, walked through, on seeds of its own.

    Without evaluations nothing reads that split, which need not be there.
    """
    tasks = test_tasks(settings) if settings.evaluation.every else ()
    return Plan(tasks, settings.evaluation.episodes, settings.seed, "sequential", share="validate", purpose="evaluate")


def test_tasks(settings: Settings) -> Sequence[Task]:
    """Returns the tasks of the test split, whatever the settings train on. Raises SettingsError where it has none."""
    try:
        return tasks_of(settings, settings.emulator, TaskSplit.test.value)
    except SettingsError as error:
        raise SettingsError(
            f"evaluation.every={settings.evaluation.every} needs the test split: {error}; correct that, or set "
            "evaluation.every=0"
        ) from error
