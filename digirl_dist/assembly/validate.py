"""The one place that refuses settings that are fine one by one but not together.

A value that is wrong by itself is refused by its own settings class. What is imported here is light, so a
contradiction is refused before torch is loaded.
"""

from __future__ import annotations

from dataclasses import replace
from enum import Enum
from pathlib import Path

from digirl_dist.agent.plugins.custom import CustomAgentSettings
from digirl_dist.agent.plugins.vlm import VlmSettings
from digirl_dist.algorithm.plugins import LearnsFrom
from digirl_dist.assembly.parts import (
    agent_plugin,
    algorithm_plugin,
    build_algorithm,
    build_device,
    collector_plugin,
    run_root,
)
from digirl_dist.assembly.schedule import test_tasks
from digirl_dist.capacity import Machine, pool_size
from digirl_dist.emulator.plugins import Device
from digirl_dist.errors import SettingsError
from digirl_dist.parallel.rank import Rank
from digirl_dist.plain_text import nearest
from digirl_dist.report import loggers
from digirl_dist.settings import (
    ChatSettings,
    EngineWeights,
    Inference,
    OpenAIEngineSettings,
    Parallel,
    Settings,
    Success,
    TaskMode,
    TaskOrder,
    TorchrunSettings,
    TrainMode,
)
from digirl_dist.settings.conversion import as_mapping
from digirl_dist.settings.extras import extra_needed, refuse_without_torch
from digirl_dist.settings.paths import refuse_bad_paths
from digirl_dist.settings.run import needs_emulators, only_measures
from digirl_dist.settings.unread import refuse_unread
from digirl_dist.storage.checkpoint import Checkpoints
from digirl_dist.storage.provenance import measured, refuse_changes, refuse_other_measurement
from digirl_dist.storage.run_folder import runs_in
from digirl_dist.storage.start import start_of
from digirl_dist.user_code.entry_point import load_callable


class Command(Enum):
    """For what the settings are meant."""

    run = "run"
    """``digirl-dist run``, in one process or as one of the ranks of a torchrun."""
    fleet = "fleet"
    """A ``Fleet``: its policies come from the program, and nothing is learned."""
    ranks = "ranks"
    """``python -m digirl_dist.train``: emulators on every rank."""


def refuse_contradictions(settings: Settings, rank: Rank | None = None, command: Command = Command.run) -> None:
    """Raises SettingsError, with the remedy, for settings that contradict each other, the command or the launch.

    ``rank`` is None in a process that no launcher started.
    """
    refuse_bad_paths(settings, emulators_here=settings.parallel is not Parallel.host or settings.dry_run)
    refuse_unread(settings)
    _refuse_unread_labels(settings)
    _refuse_resume(settings)
    _refuse_learning(settings)
    if command is Command.ranks:
        _refuse_on_ranks(settings)
    else:
        _refuse_launch(settings, rank)
        _refuse_modes(settings)
        if settings.parallel is Parallel.host and needs_emulators(settings):
            collector_plugin(settings).check(settings)
        _refuse_engine(settings)
        refuse_judge(settings)
    _refuse_start(settings)
    _refuse_loggers(settings)


def refuse_before_start(settings: Settings, rank: Rank | None, command: Command = Command.run) -> None:
    """Raises SettingsError for all that can be known without torch: contradictions, the emulator, tasks, workers.

    Every command that starts emulators calls this before it writes anything; ``doctor`` looks at each worker instead.
    """
    refuse_without_torch("a run" if command is Command.run else "a fleet")
    refuse_unstartable(settings, rank, command)
    if settings.parallel is Parallel.host and needs_emulators(settings):
        collector_plugin(settings).reach(settings, command is Command.fleet or _is_new(settings))


def refuse_unstartable(settings: Settings, rank: Rank | None = None, command: Command = Command.run) -> Device:
    """Returns the emulator. Raises SettingsError for what can be known without torch and without workers."""
    refuse_contradictions(settings, rank, command)
    device = build_device(settings, settings.emulator)
    if settings.evaluation.every and not only_measures(settings):
        test_tasks(settings)
    if command is Command.ranks or settings.parallel is not Parallel.host or settings.dry_run:
        _refuse_memory(settings, device)
    if isinstance(settings.engine, OpenAIEngineSettings) and needs_emulators(settings):
        from digirl_dist.chat.engine_servers import reach

        for server in settings.engine.servers:
            reach(server)
    match agent_plugin(settings):
        case CustomAgentSettings() as agent if command is not Command.fleet:
            agent.build(device.spec)
        case VlmSettings() as agent if command is Command.run:
            agent.reach()
    if settings.algorithm.entry_point is not None:
        build_algorithm(settings, device)
    if command is Command.run and only_measures(settings):
        _refuse_measurement(settings, device)
    return device


def _refuse_measurement(settings: Settings, device: Device) -> None:
    """Raises SettingsError where there is no checkpoint to measure, or one that was measured otherwise."""
    nothing_to_measure = _is_new(settings) and settings.start_from is None and agent_plugin(settings).learns
    if settings.task_mode is TaskMode.evaluate and nothing_to_measure:
        raise SettingsError(
            f"save_path={settings.save_path} holds no checkpoint to measure: name the folder of a run, or train first"
        )
    newest = Checkpoints(run_root(settings) / "checkpoints").newest()
    folder = run_root(settings) / "evaluation" / f"{newest.iteration if newest else 0:06d}"
    usual = replace(Settings(), agent=type(settings.agent)(), emulator=type(settings.emulator)())
    now, before = (measured(as_mapping(each), device.tasks) for each in (settings, usual))
    refuse_other_measurement(folder, now, before)


def _refuse_memory(settings: Settings, device: Device) -> None:
    """Raises SettingsError for more emulators than the memory of this machine carries.

    A worker looks at its own memory before it starts them.
    """
    if isinstance(settings.bsize, int) and needs_emulators(settings):
        pool_size(settings.bsize, Machine.here(), device.needs)


def _is_new(settings: Settings) -> bool:
    return not Checkpoints(run_root(settings) / "checkpoints").has_any()


def _refuse_loggers(settings: Settings) -> None:
    for name in settings.loggers:
        if name not in (known := loggers.names()):
            raise SettingsError(f"loggers: there is no {name!r}; {nearest(name, known)}")
        if not loggers.is_installed(name):
            raise SettingsError(f"loggers: {name} needs a package: pip install 'digirl_dist[{name}]'")


def _refuse_launch(settings: Settings, rank: Rank | None) -> None:
    if (
        rank is not None
        and isinstance(settings.trainer, TorchrunSettings)
        and rank.local_world_size != settings.trainer.nproc_per_node
    ):
        raise SettingsError("a launcher has started the ranks already; leave trainer=torchrun out")


def _refuse_resume(settings: Settings) -> None:
    """What would make the run that is in the run folder another one, and a folder of runs."""
    root = run_root(settings)
    if not (root / "config.yaml").exists() and (runs := runs_in(root)):
        raise SettingsError(f"save_path={root} is a folder of runs, as {runs[0].name}: name another one in it")
    if not (only_measures(settings) or _is_new(settings)):
        refuse_changes(root, as_mapping(settings))


def _refuse_learning(settings: Settings) -> None:
    """What the agent and the algorithm cannot do."""
    name, agent = settings.agent.name, agent_plugin(settings)
    if not agent.learns and not only_measures(settings):
        raise SettingsError(
            f"agent={name} acts and cannot be trained: measure it with task_mode=evaluate (--config-name eval), "
            "or collect with task_mode=collect and train another agent on that, with offline.data; or use agent=vlm"
        )
    for key, first, lacks in (
        (
            "offline.iterations",
            settings.offline.iterations * (settings.train_mode is TrainMode.offline_to_online),
            "collected; use train_mode=offline",
        ),
        (
            "algorithm.digirl.warmup_iterations",
            getattr(algorithm_plugin(settings), "warmup_iterations", 0),
            "taught to the policy; lower that",
        ),
    ):
        if 0 < settings.train_iterations <= first and not only_measures(settings):
            raise SettingsError(
                f"train_iterations={settings.train_iterations} ends with the first {key}={first}, before anything is "
                f"{lacks}, or raise train_iterations"
            )
    asks_here = settings.dry_run or settings.parallel is not Parallel.host or settings.inference is Inference.host
    if agent.chat and asks_here:
        refuse_keyless(f"agent={name}", agent.chat, "agent", "endpoint")


def _refuse_modes(settings: Settings) -> None:
    algorithm, mode = algorithm_plugin(settings), settings.train_mode
    if mode is not TrainMode.online:
        if not settings.offline.data:
            raise SettingsError(f"train_mode={mode.value} needs offline.data=[FOLDER]")
        if algorithm.learns_from is not LearnsFrom.episodes:
            raise SettingsError(
                f"{settings.algorithm.entry_point or settings.train_algorithm} learns from the newest policies alone; "
                "use train_mode=online, or digirl"
            )
        from digirl_dist.storage.datasets import refuse_unreadable

        if len({Path(each).expanduser().resolve() for each in settings.offline.data}) < len(settings.offline.data):
            raise SettingsError(f"offline.data={settings.offline.data} names a place twice: name it once")
        refuse_unreadable(settings.offline.data)
    size = algorithm.episodes_per_start
    if settings.rollout_size % size and settings.task_mode is not TaskMode.evaluate:  # which has no groups
        own = settings.algorithm.entry_point
        key = f"{own}'s group_size" if own else f"algorithm.{settings.train_algorithm}.group_size"
        raise SettingsError(
            f"rollout_size={settings.rollout_size} is no multiple of {key}={size}, as "
            f"{settings.rollout_size // size * size or size} is"
        )
    collects = mode is not TrainMode.offline and not only_measures(settings)
    if collects and settings.rollout_size > settings.trainer.replay_size:
        raise SettingsError(
            f"an iteration brings rollout_size={settings.rollout_size} episodes, and its update sees the newest "
            f"trainer.replay_size={settings.trainer.replay_size}: nothing would be learned from the others; raise that"
        )


def _refuse_unread_labels(settings: Settings) -> None:
    if getattr(settings.emulator, "labels", False) and not getattr(settings.agent, "labels", False):
        reads = hasattr(settings.agent, "labels")
        how = "needs agent.labels=true" if reads else "is for agent=device, vlm and endpoint"
        raise SettingsError(f"emulator.labels=true {how}: nothing else reads the names of what is on the screen")


def _refuse_engine(settings: Settings) -> None:
    engine = settings.engine
    if not isinstance(engine, OpenAIEngineSettings):
        return
    if settings.inference is not Inference.host or settings.parallel is not Parallel.host:
        raise SettingsError("engine=openai acts for the workers of a host: add inference=host, with parallel=host")
    if not isinstance(settings.agent, VlmSettings):
        raise SettingsError(f"engine=openai serves agent=vlm, not agent={settings.agent.name}; use engine=transformers")
    if engine.answer_s + engine.outage_s >= settings.limits.stuck_s:
        raise SettingsError(
            f"engine.answer_s={engine.answer_s:g} and engine.outage_s={engine.outage_s:g} together must be below "
            f"limits.stuck_s={settings.limits.stuck_s:g}, after which workers give a request up"
        )
    if settings.ahead and engine.sleep:
        raise SettingsError("engine.sleep=true: with ahead, the servers act while the host learns; set ahead=0")
    if settings.ahead and engine.weights is EngineWeights.full:
        raise SettingsError("engine.weights=full: with ahead, a server acts by several versions; set ahead=0")
    refuse_keyless("engine=openai", engine.chat, "engine", "endpoint")


def refuse_keyless(chosen: str, chat: ChatSettings, group: str, extra: str) -> None:
    """Raises SettingsError for a chat server for which this machine has no key, or no client."""
    with extra_needed(chosen, "httpx", extra):
        from digirl_dist.chat.client import key_of
        from digirl_dist.chat.http import client
    client(key_of(chat, group))


def refuse_judge(settings: Settings) -> None:
    """Raises SettingsError for a judge that cannot be used."""
    match settings.success:
        case Success.predicate:
            if settings.predicate is None:
                raise SettingsError("success=predicate needs a function of yours: predicate=my_file:is_done")
            load_callable(settings.predicate, "predicate", [None], {})
        case Success.judge:
            from digirl_dist.judge.model import refuse_unknown_placeholders

            refuse_unknown_placeholders(settings.judge.prompt)
            refuse_keyless("success=judge", settings.judge, "judge", "judge")


def _refuse_start(settings: Settings) -> None:
    """A policy to start with that is not there, or that belongs to another agent."""
    start = start_of(settings.start_from, run_root(settings))
    if start is None:
        return
    name = settings.agent.name
    if not agent_plugin(settings).learns:
        raise SettingsError(f"agent={name} has no weights; leave start_from out")
    if start.agent not in (None, name):
        raise SettingsError(f"start_from={settings.start_from} is a policy of agent={start.agent}, not of agent={name}")


def _refuse_on_ranks(settings: Settings) -> None:
    """What only a host can do."""
    success, mode = settings.success, settings.train_mode
    refusals = {
        "train and no more: measure and collect with `digirl-dist run`, or by eval-jobs": only_measures(settings),
        f"learn from the emulator's own verdicts; use `digirl-dist run` for success={success.value}": (
            success is not Success.environment
        ),
        "are started by torchrun themselves; leave trainer=torchrun out": isinstance(
            settings.trainer, TorchrunSettings
        ),
        f"learn online alone; use `digirl-dist run` for {mode.value}": mode is not TrainMode.online,
        "act by themselves; leave engine=openai out": isinstance(settings.engine, OpenAIEngineSettings),
        "need a number for bsize, the same for all": not isinstance(settings.bsize, int),
    }
    if refused := [said for said, holds in refusals.items() if holds]:
        raise SettingsError(f"ranks with emulators {refused[0]}")
    if unread := [name for name, is_set in _of_a_host(settings).items() if is_set]:
        raise SettingsError(
            f"ranks with emulators do not read {', '.join(unread)}: each steps its own emulators on random tasks, and "
            "learns from every iteration at once; leave that out, or use `digirl-dist run`"
        )
    size = algorithm_plugin(settings).episodes_per_start
    if size > 1 and int(settings.bsize) * size > settings.trainer.replay_size:
        raise SettingsError(
            f"bsize={settings.bsize} emulators make groups of {size} episodes at a time, and an update sees the newest "
            f"trainer.replay_size={settings.trainer.replay_size}: no group would ever be complete; raise that"
        )


def _of_a_host(settings: Settings) -> dict[str, bool]:
    """Returns what a host alone reads, and whether it is set to anything but its default."""
    return {
        "worker_ips": bool(settings.worker_ips),
        "dry_run": settings.dry_run,
        "inference=host": settings.inference is Inference.host,
        "ahead": bool(settings.ahead),
        "task_order": settings.task_order is not TaskOrder.random,
    }
