"""What the modes of a run come to."""

from digirl_dist.settings.run import Parallel, Settings, TaskMode, TrainMode


def only_measures(settings: Settings) -> bool:
    """Returns whether nothing is learned."""
    return settings.task_mode is not TaskMode.train or settings.parallel is Parallel.worker


def needs_emulators(settings: Settings) -> bool:
    """Whether any episode will be run: all do but offline training without evaluations."""
    offline = settings.task_mode is TaskMode.train and settings.train_mode is TrainMode.offline
    return not offline or settings.evaluation.every > 0
