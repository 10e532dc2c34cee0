"""The composition root: the only place that knows every implementation, chosen by the type of its settings."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING, Any

from digirl_dist import configuration, host
from digirl_dist.agent import AgentFactory
from digirl_dist.checkpoint import Checkpoints
from digirl_dist.collect import Collector
from digirl_dist.digest import file_digest
from digirl_dist.emulator import EmulatorFactory, EmulatorSpec
from digirl_dist.emulator.slot import SlotLimits
from digirl_dist.entry_point import load_entry_point
from digirl_dist.errors import SettingsError
from digirl_dist.events import Events
from digirl_dist.fleet.roster import members
from digirl_dist.report.progress import Progress
from digirl_dist.report.report import Report
from digirl_dist.run_folder import RunFolder
from digirl_dist.settings import (
    AgentSettings,
    CustomAgentSettings,
    CustomEmulatorSettings,
    DeviceAgentSettings,
    EmulatorSettings,
    GenericAgentSettings,
    GymnasiumSettings,
    LimitSettings,
    MiniwobSettings,
    Parallel,
    PhoneSettings,
    RehearsalSettings,
    Settings,
    TaskMode,
    TrainAlgorithm,
)
from digirl_dist.status import Status
from digirl_dist.store import Store
from digirl_dist.tasks import Plan, Task
from digirl_dist.train import Trainer
from digirl_dist.train.inprocess import AlgorithmFactory, InProcessTrainer

if TYPE_CHECKING:
    from digirl_dist.fleet.install import Package
    from digirl_dist.fleet.roster import Member
    from digirl_dist.fleet.spec import Job, WorkerSpec


@dataclass(frozen=True)
class Device:
    """Everything there is to know of the chosen emulator."""

    factory: EmulatorFactory
    spec: EmulatorSpec
    tasks: Sequence[Task]
    max_steps: int | None
    extras: tuple[str, ...] = ()
    """Optional parts of the package that a worker needs for it."""


@dataclass(frozen=True)
class Ground:
    """What the parts of one run stand on."""

    settings: Settings
    device: Device
    agent: AgentFactory
    folder: RunFolder
    store: Store
    events: Events
    status: Status


def run(settings: Settings) -> None:
    """Build the parts that ``settings`` ask for, run the loop, and take everything down again."""
    if settings.parallel is Parallel.host and not settings.dry_run:
        members(settings)  # what is wrong there is refused before anything is made
    device = _device(settings, settings.emulator)
    agent = _agent(settings.agent, device.spec)
    plan = Plan(device.tasks, settings.rollout_size, settings.seed, settings.task_order.value)
    only_measure = settings.task_mode is TaskMode.evaluate or settings.parallel is Parallel.worker
    with ExitStack() as stack:
        folder = RunFolder(Path(settings.save_path).expanduser().resolve(), configuration.to_yaml(settings))
        stack.callback(folder.close)
        progress = Progress(settings.rollout_size)
        events = Events(folder.events, (progress.listen,))
        stack.callback(events.close)
        trainer = _trainer(settings, agent, folder)
        stack.callback(trainer.close)
        status = Status(folder.root / "status.json")
        report = Report(folder, events, progress, status)
        stack.callback(report.close)
        store = Store(folder.evaluation(trainer.resume().iteration) if only_measure else folder.trajectories)
        collector = build_collector(Ground(settings, device, agent, folder, store, events, status), stack)
        if only_measure:
            host.evaluate(collector, trainer, store, plan, report, settings.eval_iterations)
        else:
            host.train(collector, trainer, store, plan, report, settings.train_iterations)


def _trainer(settings: Settings, agent: AgentFactory, folder: RunFolder) -> Trainer:
    checkpoints = Checkpoints(folder.checkpoints, settings.save_freq)
    return InProcessTrainer(agent, _algorithm(settings), checkpoints, settings.trainer.replay_size, settings.seed)


def build_collector(ground: Ground, stack: ExitStack) -> Collector:
    """The collector; ``stack`` takes it down at the end whatever happens."""
    settings = ground.settings
    collector = _fleet_collector(ground, stack) if settings.parallel is Parallel.host else _inline_collector(ground)
    stack.callback(collector.close)
    return collector


def _inline_collector(ground: Ground) -> Collector:
    from digirl_dist.collect.inline import InlineCollector, InlineJob

    settings, device = ground.settings, ground.device
    job = InlineJob(ground.agent, device.factory, settings.bsize, _slot_limits(settings.limits), device.max_steps)
    return InlineCollector(job, settings.limits.episode_attempts, ground.store, ground.events, ground.status)


def _fleet_collector(ground: Ground, stack: ExitStack) -> Collector:
    from digirl_dist.collect.fleet import FleetCollector
    from digirl_dist.fleet.fleet import Fleet
    from digirl_dist.fleet.roster import localhost_members

    settings = ground.settings
    if settings.dry_run:
        found = localhost_members(settings, ground.folder.dry_run, stack)
    else:
        found = members(settings)
    package = None if settings.dry_run else _package(ground, stack)
    workers = [(_worker_spec(member, ground, package), _job(member, ground)) for member in found]
    fleet = Fleet(workers, settings.ssh, settings.limits)
    return FleetCollector(fleet, settings.limits, settings.prefetch, ground.store, ground.events, ground.status)


def _package(ground: Ground, stack: ExitStack) -> Package:
    """This very package as the workers are to have it, with the host's versions of what it depends on."""
    from digirl_dist.fleet.install import Package, build_wheel, host_versions, requirements

    settings = ground.settings.install
    folder = Path(stack.enter_context(TemporaryDirectory(prefix="digirl-dist-wheel-")))
    return Package(
        wheel=build_wheel(folder),
        requirements=requirements(ground.device.extras),
        constraints=host_versions(),
        pip_args=tuple(settings.pip_args),
        reuse_packages=settings.reuse_packages,
        limit_s=settings.limit_s,
    )


def _worker_spec(member: Member, ground: Ground, package: Package | None) -> WorkerSpec:
    """``package`` is None for localhost workers, which use the host's own."""
    from digirl_dist.fleet.roster import installer, this_python
    from digirl_dist.fleet.spec import WorkerSpec

    folder = f"{member.temp_path}/{ground.folder.run_id}-{member.name}"
    install = this_python if package is None else installer(member, package, ground.events)
    version = "" if package is None else file_digest(package.wheel)
    limit_s = 0.0 if package is None else package.limit_s
    return WorkerSpec(member.address, member.slots, folder, install, limit_s, version)


def _job(member: Member, ground: Ground) -> Job:
    """What the worker is to do; its own emulator settings, if it has any, are checked here."""
    from digirl_dist.fleet.spec import Job
    from digirl_dist.travel import pack

    settings, device = ground.settings, ground.device
    if member.emulator:
        device = _device(settings, configuration.merged(settings.emulator, member.emulator, f"worker {member.name}"))
    return Job(
        run=ground.folder.run_id,
        agent=pack(ground.agent),
        emulator=pack(device.factory),
        max_steps=device.max_steps,
        limits=_slot_limits(settings.limits),
        torch_threads=settings.worker_torch_threads,
        orphan_s=settings.limits.orphan_s,
    )


def _device(settings: Settings, emulator: EmulatorSettings) -> Device:
    task_set, split = settings.task_set, settings.task_split.value
    match emulator:
        case PhoneSettings():
            from digirl_dist.emulator.phone import MAX_STEPS, PHONE_SPEC, DemoPhone, phone_tasks

            tasks = phone_tasks(task_set, split)
            return Device(partial(DemoPhone, emulator), PHONE_SPEC, tasks, settings.max_steps or MAX_STEPS)
        case GymnasiumSettings():
            from digirl_dist.emulator.gymnasium import gymnasium_factory, gymnasium_spec, gymnasium_tasks

            factory = gymnasium_factory(emulator)
            extras = ("atari",) if (emulator.id or "").startswith("ALE/") else ()
            return Device(factory, gymnasium_spec(factory), gymnasium_tasks(emulator), settings.max_steps, extras)
        case MiniwobSettings():
            from digirl_dist.emulator.miniwob import MAX_STEPS, SPEC, MiniwobEmulator, miniwob_tasks

            tasks = miniwob_tasks(emulator, split)
            factory = partial(MiniwobEmulator, emulator)
            return Device(factory, SPEC, tasks, settings.max_steps or MAX_STEPS, ("miniwob",))
        case RehearsalSettings():
            from digirl_dist.emulator.rehearsal import RehearsalEmulator, rehearsal_spec, rehearsal_tasks

            factory = partial(RehearsalEmulator, emulator)
            return Device(factory, rehearsal_spec(emulator), rehearsal_tasks(), settings.max_steps)
        case CustomEmulatorSettings():
            kind: Any = load_entry_point(emulator.entry_point)
            factory = partial(kind, **emulator.kwargs)
            return Device(factory, kind.spec, kind.tasks(task_set, split), settings.max_steps)
        case _:
            raise SettingsError(f"emulator: {type(emulator).__name__} is not one that can be built")


def _agent(settings: AgentSettings, spec: EmulatorSpec) -> AgentFactory:
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


def _algorithm(settings: Settings) -> AlgorithmFactory:
    match settings.train_algorithm:
        case TrainAlgorithm.filtered_bc:
            from digirl_dist.algorithm.filtered_bc import FilteredBC

            return lambda agent: FilteredBC(agent, settings.algorithm.filtered_bc, settings.seed)
        case TrainAlgorithm.digirl:
            from digirl_dist.algorithm.digirl import DigiRL

            return lambda agent: DigiRL(agent, settings.algorithm.digirl, settings.seed)


def _slot_limits(limits: LimitSettings) -> SlotLimits:
    return SlotLimits(limits.boot_s, limits.reset_s, limits.step_s, limits.slot_failures, limits.quarantine_s)
