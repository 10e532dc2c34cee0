"""What the training modes come to: which data an update sees, and whether anything is collected at all."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from digirl_dist.build.choices import choose_device
from digirl_dist.errors import SettingsError
from digirl_dist.parallel.rank import Rank
from digirl_dist.settings import JaxSettings, Settings, TaskMode, TaskSplit, TorchrunSettings, TrainAlgorithm, TrainMode
from digirl_dist.tasks import Plan, Task

_ON_POLICY = (TrainAlgorithm.grpo, TrainAlgorithm.ppo)


def refuse_contradictions(settings: Settings, rank: Rank | None = None) -> None:
    """Raises SettingsError for settings that are fine one by one but not together, or not for a rank of a launch."""
    if rank is not None and rank.world_size > 1 and isinstance(settings.trainer, TorchrunSettings):
        raise SettingsError("torchrun has started several ranks already; leave trainer=torchrun out")
    if isinstance(settings.trainer, JaxSettings):
        raise SettingsError("trainer=jax is for ranks with emulators: python -m digirl_dist.train; leave it out here")
    several = isinstance(settings.trainer, TorchrunSettings) or (rank is not None and rank.world_size > 1)
    if settings.trainer.shard and not several:
        raise SettingsError("trainer.shard spreads an agent over several ranks: add trainer=torchrun, or use torchrun")
    if settings.train_mode is not TrainMode.online:
        if not settings.offline.data:
            raise SettingsError(f"train_mode={settings.train_mode.value} needs offline.data=[FOLDER]")
        if settings.train_algorithm in _ON_POLICY:
            name = settings.train_algorithm.value
            raise SettingsError(f"{name} learns from the newest policies alone; use train_mode=online, or digirl")
    if settings.rollout_size % group_size(settings):
        size = group_size(settings)
        raise SettingsError(f"rollout_size={settings.rollout_size} is no multiple of algorithm.grpo.group_size={size}")


def needs_emulators(settings: Settings) -> bool:
    """Whether any episode will be run: all do but offline training without evaluations."""
    offline = settings.task_mode is TaskMode.train and settings.train_mode is TrainMode.offline
    return not offline or settings.evaluation.every > 0


def offline_iterations(settings: Settings) -> int:
    """How many updates are made before anything is collected."""
    match settings.train_mode:
        case TrainMode.online:
            return 0
        case TrainMode.offline:
            return settings.train_iterations
        case TrainMode.offline_to_online:
            return settings.offline.iterations


def offline_data(settings: Settings) -> tuple[str, ...]:
    """Where the trajectories from elsewhere are."""
    return () if settings.train_mode is TrainMode.online else tuple(settings.offline.data)


def group_size(settings: Settings) -> int:
    """How many episodes have one start, for algorithms that compare these."""
    return settings.algorithm.grpo.group_size if settings.train_algorithm is TrainAlgorithm.grpo else 1


def training_plan(settings: Settings, tasks: Sequence[Task]) -> Plan:
    """The tickets of an iteration."""
    return Plan(tasks, settings.rollout_size, settings.seed, settings.task_order.value, group_size(settings))


def evaluation_plan(settings: Settings) -> Plan:
    """The tickets of one measurement: the test split, walked through."""
    tasks = choose_device(replace(settings, task_split=TaskSplit.test), settings.emulator).tasks
    return Plan(tasks, settings.evaluation.episodes, settings.seed, "sequential")
