"""Which emulator, agent and algorithm the settings mean, by the type of their block; imported only when chosen."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

from digirl_dist.agent import AgentFactory
from digirl_dist.capacity import TYPICAL, Needs
from digirl_dist.collect.iteration import Closing
from digirl_dist.emulator import EmulatorFactory, EmulatorSpec
from digirl_dist.entry_point import load_entry_point
from digirl_dist.errors import SettingsError
from digirl_dist.events import Events
from digirl_dist.judge import Judge
from digirl_dist.settings import (
    AgentSettings,
    AndroidSettings,
    Close,
    CustomAgentSettings,
    CustomEmulatorSettings,
    DeviceAgentSettings,
    EmulatorSettings,
    GenericAgentSettings,
    GymnasiumSettings,
    MiniwobSettings,
    Parallel,
    PhoneSettings,
    RehearsalSettings,
    Settings,
    Success,
    TaskMode,
    TrainAlgorithm,
)
from digirl_dist.task_set import from_file, is_file
from digirl_dist.tasks import Task
from digirl_dist.train.inprocess import AlgorithmFactory


@dataclass(frozen=True)
class Device:
    """Everything there is to know of the chosen emulator."""

    factory: EmulatorFactory
    spec: EmulatorSpec
    tasks: Sequence[Task]
    max_steps: int | None
    extras: tuple[str, ...] = ()
    """Optional parts of the package that a worker needs for it."""
    needs: Needs = TYPICAL
    """What one of these emulators takes of a machine, for ``bsize: auto``."""


def choose_device(settings: Settings, emulator: EmulatorSettings) -> Device:
    """Raises SettingsError for a task set or an emulator that does not exist."""
    task_set, split = settings.task_set, settings.task_split.value
    in_file = is_file(task_set)
    match emulator:
        case PhoneSettings():
            from digirl_dist.emulator.phone import MAX_STEPS, PHONE_SPEC, DemoPhone, phone_tasks

            judged_elsewhere = settings.success is not Success.environment
            known = phone_tasks("all", split)
            tasks = (
                from_file(task_set, split, known, lambda task: judged_elsewhere or "app" in task.params)
                if in_file
                else phone_tasks(task_set, split)
            )
            max_steps = settings.max_steps or MAX_STEPS
            return Device(partial(DemoPhone, emulator), PHONE_SPEC, tasks, max_steps, needs=Needs(60, 0.25))
        case GymnasiumSettings():
            from digirl_dist.emulator.gymnasium import gymnasium_factory, gymnasium_spec, gymnasium_tasks

            factory = gymnasium_factory(emulator)
            extras = ("atari",) if (emulator.id or "").startswith("ALE/") else ()
            tasks = from_file(task_set, split) if in_file else gymnasium_tasks(emulator)
            return Device(factory, gymnasium_spec(factory), tasks, settings.max_steps, extras)
        case MiniwobSettings():
            from digirl_dist.emulator.miniwob import MAX_STEPS, SPEC, MiniwobEmulator, every_page, miniwob_tasks

            tasks = miniwob_tasks(emulator, split)
            if in_file:
                tasks = from_file(task_set, split, every_page(split), lambda _: False)
            max_steps = settings.max_steps or MAX_STEPS
            return Device(partial(MiniwobEmulator, emulator), SPEC, tasks, max_steps, ("miniwob",), Needs(300, 0.5))
        case AndroidSettings():
            from digirl_dist.emulator.android import MAX_STEPS, AndroidEmulator, android_spec, android_tasks

            spec = android_spec(emulator)
            tasks = from_file(task_set, split) if in_file else android_tasks(task_set, split)
            needs = Needs(2500, 1.0) if emulator.avd else Needs(100, 0.1)
            max_steps = settings.max_steps or MAX_STEPS
            return Device(partial(AndroidEmulator, emulator), spec, tasks, max_steps, ("android",), needs)
        case RehearsalSettings():
            from digirl_dist.emulator.rehearsal import RehearsalEmulator, rehearsal_spec, rehearsal_tasks

            tasks = from_file(task_set, split) if in_file else rehearsal_tasks()
            spec, needs = rehearsal_spec(emulator), Needs(60, 0.05)
            return Device(partial(RehearsalEmulator, emulator), spec, tasks, settings.max_steps, needs=needs)
        case CustomEmulatorSettings():
            kind: Any = load_entry_point(emulator.entry_point)
            custom = partial(kind, **emulator.kwargs)
            tasks = from_file(task_set, split) if in_file else kind.tasks(task_set, split)
            return Device(custom, kind.spec, tasks, settings.max_steps, needs=getattr(kind, "needs", TYPICAL))
        case _:
            raise SettingsError(f"emulator: {type(emulator).__name__} is not one that can be built")


def choose_agent(settings: AgentSettings, spec: EmulatorSpec) -> AgentFactory:
    match settings:
        case DeviceAgentSettings():
            from digirl_dist.agent.device import DevicePolicy

            return partial(DevicePolicy, settings, spec)
        case GenericAgentSettings():
            from digirl_dist.agent.generic import GenericPolicy

            return partial(GenericPolicy, settings, spec)
        case CustomAgentSettings():
            kind: Any = load_entry_point(settings.entry_point)
            return partial(kind, spec, **settings.kwargs)
        case _:
            raise SettingsError(f"agent: {type(settings).__name__} is not one that can be built")


def choose_judge(settings: Settings, verdicts: Path, events: Events) -> Judge | None:
    """None where the emulator judges. ``verdicts`` is the file in which those of a model are kept."""
    match settings.success:
        case Success.environment:
            return None
        case Success.predicate:
            from digirl_dist.judge.predicate import PredicateJudge

            name = str(settings.predicate)
            return PredicateJudge(load_entry_point(name), name)
        case Success.judge:
            from digirl_dist.judge.model import ModelJudge, key_of
            from digirl_dist.judge.verdicts import Verdicts

            return ModelJudge(settings.judge, key_of(settings.judge), Verdicts(verdicts), events)


def check_judge(settings: Settings) -> None:
    """Refuse what ``choose_judge`` cannot build, before there is a run folder. Raises SettingsError."""
    match settings.success:
        case Success.predicate:
            if settings.predicate is None:
                raise SettingsError("success=predicate needs a function of yours: predicate=my_file:is_done")
            load_entry_point(settings.predicate)
        case Success.judge:
            try:
                from digirl_dist.judge.model import key_of
            except ImportError as error:
                raise SettingsError("success=judge needs openai: pip install 'digirl_dist[judge]'") from error
            key_of(settings.judge)


def choose_algorithm(settings: Settings, horizon: int | None) -> AlgorithmFactory:
    """``horizon``: the most steps that an episode may have, if that is known."""
    match settings.train_algorithm:
        case TrainAlgorithm.filtered_bc:
            from digirl_dist.algorithm.filtered_bc import FilteredBC

            return lambda agent, peers: FilteredBC(agent, settings.algorithm.filtered_bc, settings.seed, peers)
        case TrainAlgorithm.digirl:
            from digirl_dist.algorithm.digirl import DigiRL

            return lambda agent, peers: DigiRL(agent, settings.algorithm.digirl, settings.seed, peers, horizon)
        case TrainAlgorithm.grpo:
            from digirl_dist.algorithm.grpo import Grpo

            return lambda agent, peers: Grpo(agent, settings.algorithm.grpo, settings.seed, peers)
        case TrainAlgorithm.ppo:
            from digirl_dist.algorithm.ppo import PPO

            ppo = settings.algorithm.ppo
            iterations = ppo.anneal_iterations or settings.train_iterations
            return lambda agent, peers: PPO(agent, ppo, iterations, settings.seed, peers)


def only_measures(settings: Settings) -> bool:
    """True if nothing is learned."""
    return settings.task_mode is TaskMode.evaluate or settings.parallel is Parallel.worker


def choose_closing(settings: Settings) -> Closing:
    """A measurement has all of its episodes: the longest would be missing otherwise."""
    if settings.close is Close.all or only_measures(settings):
        return Closing()
    if settings.close is Close.quorum:
        if not 0 < settings.quorum <= 1:
            raise SettingsError(f"quorum={settings.quorum} is not a share: set it above 0, and to 1 at most")
        return Closing(share=settings.quorum)
    if settings.deadline_s <= 0:
        raise SettingsError(f"deadline_s={settings.deadline_s} leaves no time: set it above 0")
    return Closing(after_s=settings.deadline_s)


def choose_ahead(settings: Settings) -> int:
    """Iterations to collect ahead: no more than ``max_staleness`` allows, and none where nothing is learned."""
    limit = settings.max_staleness
    if settings.collect_ahead < 0 or (limit is not None and limit < 0):
        raise SettingsError("collect_ahead and max_staleness must not be negative")
    ahead = settings.collect_ahead if limit is None else min(settings.collect_ahead, limit)
    return 0 if only_measures(settings) else ahead
