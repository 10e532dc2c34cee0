"""The composition root: puts the parts together that ``choices`` and the settings name, and takes them down again."""

from __future__ import annotations

import os
from collections.abc import Callable
from contextlib import ExitStack
from dataclasses import dataclass, replace
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING, Any

from digirl_dist import configuration, host, modes
from digirl_dist.agent import AgentFactory
from digirl_dist.capacity import Choice, Machine, choose
from digirl_dist.checkpoint import Checkpoints
from digirl_dist.choices import (
    Device,
    check_judge,
    choose_agent,
    choose_ahead,
    choose_algorithm,
    choose_closing,
    choose_device,
    choose_judge,
    only_measures,
)
from digirl_dist.collect import Collector
from digirl_dist.collect.iteration import Closing
from digirl_dist.collect.judged import JudgedCollector
from digirl_dist.collect.offline import OfflineCollector, OfflineFirst
from digirl_dist.digest import file_digest
from digirl_dist.emulator.slot import SlotLimits
from digirl_dist.evaluator import Evaluator
from digirl_dist.events import Events
from digirl_dist.fleet.roster import members
from digirl_dist.parallel.failure import telling
from digirl_dist.parallel.group import GroupLimits
from digirl_dist.parallel.peers import ALONE
from digirl_dist.parallel.rank import Rank, launched_rank
from digirl_dist.report.curves import Curves, TensorBoard, WeightsAndBiases
from digirl_dist.report.media import Media
from digirl_dist.report.progress import Progress
from digirl_dist.report.report import Report
from digirl_dist.room import Room
from digirl_dist.run_folder import RunFolder
from digirl_dist.settings import (
    LimitSettings,
    Parallel,
    RayCollectorSettings,
    Settings,
    SshCollectorSettings,
    TorchrunSettings,
)
from digirl_dist.status import Status
from digirl_dist.store import Store
from digirl_dist.tasks import Plan
from digirl_dist.train import Trainer
from digirl_dist.train.member import Learning

if TYPE_CHECKING:
    from digirl_dist.fleet.fleet import Fleet
    from digirl_dist.fleet.install import Package
    from digirl_dist.fleet.roster import Member
    from digirl_dist.fleet.spec import Job, WorkerSpec


@dataclass(frozen=True)
class Ground:
    """What the parts of one run stand on."""

    settings: Settings
    device: Device
    agent: AgentFactory
    plan: Plan
    folder: RunFolder
    store: Store
    events: Events
    status: Status
    closing: Closing = Closing()  # noqa: RUF009 - frozen
    ahead: int = 0
    source: configuration.Source | None = None
    """Where the settings came from, if workers that are added there while the run goes on shall join it."""


def run(settings: Settings, source: configuration.Source | None = None) -> None:
    """Build the parts that ``settings`` ask for, run the loop, and take everything down again.

    ``source`` is where they came from: workers that are added there while the run goes on join it. Of the ranks of a
    ``torchrun run.py``, the first does all this, and the others learn with it.
    """
    rank = launched_rank(os.environ)
    modes.refuse_contradictions(settings, rank)
    over_ssh = settings.parallel is Parallel.host and isinstance(settings.collector, SshCollectorSettings)
    if over_ssh and not settings.dry_run and modes.needs_emulators(settings):
        members(settings)  # what is wrong there is refused before anything is made
    choose_closing(settings), choose_ahead(settings)  # the same for these
    device = choose_device(settings, settings.emulator)
    check_judge(settings)
    agent = choose_agent(settings.agent, device.spec)
    learning = _learning(settings, device, agent, Path(settings.save_path).expanduser().resolve())
    if rank is None or rank.is_first:
        _lead(settings, source, device, agent, learning, rank)
    else:
        _follow(learning, rank)


def _lead(
    settings: Settings,
    source: configuration.Source | None,
    device: Device,
    agent: AgentFactory,
    learning: Learning,
    rank: Rank | None,
) -> None:
    closing, ahead = choose_closing(settings), choose_ahead(settings)
    plan = modes.training_plan(settings, device.tasks)
    only_measure = only_measures(settings)
    with ExitStack() as stack:
        folder = RunFolder(Path(settings.save_path).expanduser().resolve(), configuration.to_yaml(settings))
        stack.callback(folder.close)
        progress = Progress(settings.rollout_size)
        events = Events(folder.events, (progress.listen,))
        stack.callback(events.close)
        status = Status(folder.root / "status.json")
        room = Room(events, status, settings.limits.full_disk_s)
        trainer = _trainer(settings, learning, folder, room, rank, stack)
        stack.callback(trainer.close)
        media = Media(folder.media, settings.media, events)
        report = Report(folder, events, progress, status, build_curves(settings, folder), media, room)
        stack.callback(report.close)
        store = Store(folder.evaluation(trainer.resume().iteration) if only_measure else folder.trajectories, room)
        collector = build_collector(
            Ground(
                settings,
                device,
                agent,
                plan,
                folder,
                store,
                events,
                status,
                closing,
                ahead,
                source,
            ),
            stack,
        )
        if only_measure:
            host.evaluate(collector, trainer, store, plan, report, settings.eval_iterations)
        else:
            every, last = settings.evaluation.every, settings.train_iterations
            measured = modes.evaluation_plan(settings)
            evaluator = Evaluator(collector, measured, store, learning.checkpoints, report, every, last)
            host.train(collector, trainer, store, plan, evaluator, report, settings.train_iterations)


def build_curves(settings: Settings, folder: RunFolder) -> list[Curves]:
    """Where the figures are drawn."""
    drawn: list[Curves] = [TensorBoard(folder.tensorboard)]
    if settings.wandb_project:
        drawn.append(WeightsAndBiases(settings.wandb_project, folder.run_id, folder.root))
    return drawn


def _learning(settings: Settings, device: Device, agent: AgentFactory, root: Path) -> Learning:
    """What every process that makes updates of the run folder ``root`` must know."""
    trainer = settings.trainer
    return Learning(
        agent=agent,
        algorithm=choose_algorithm(settings, device.max_steps),
        checkpoints=Checkpoints(
            root / "checkpoints", settings.save_freq, settings.keep_checkpoints, in_use=settings.collect_ahead
        ),
        trajectories=root / "trajectories",
        replay_size=trainer.replay_size,
        offline=modes.offline_data(settings),
        seed=settings.seed,
        max_staleness=settings.max_staleness,
        device=trainer.device,
        limits=GroupLimits(trainer.start_s, trainer.exchange_s, trainer.idle_s),
        idle_s=trainer.idle_s,
    )


def _trainer(
    settings: Settings, learning: Learning, folder: RunFolder, room: Room, rank: Rank | None, stack: ExitStack
) -> Trainer:
    """One of three: this process, all ranks of its launch with this one in the lead, or a group that it starts."""
    patient = replace(learning, checkpoints=learning.checkpoints.patient(room))
    match settings.trainer:
        case TorchrunSettings() as chosen:
            from digirl_dist.train.torchrun import TorchrunTrainer

            return TorchrunTrainer(learning, chosen, folder.root / "trainer.log")
        case _ if rank is not None and rank.world_size > 1:
            from digirl_dist.train.joint import JointTrainer

            return JointTrainer(*stack.enter_context(patient.joined(rank)))
        case _:
            return patient.trainer(patient.device_of(rank), ALONE)


def _follow(learning: Learning, rank: Rank) -> None:
    """What a rank of ``torchrun run.py`` does when it is not the first: its share of every update."""
    from digirl_dist.train.joint import follow

    with telling(rank), learning.joined(rank) as (trainer, group):
        follow(trainer, group, Store(learning.trajectories), learning.idle_s)


def build_collector(ground: Ground, stack: ExitStack) -> Collector:
    """The collector; ``stack`` takes it down at the end whatever happens."""
    settings = ground.settings
    if not modes.needs_emulators(settings):
        return OfflineCollector()
    collector: Collector
    collector = _workers_collector(ground, stack) if settings.parallel is Parallel.host else _inline_collector(ground)
    judge = choose_judge(settings, ground.folder.verdicts, ground.events)
    if judge is not None:
        collector = JudgedCollector(collector, judge, ground.store, ground.events, ground.status)
    collector = OfflineFirst(collector, modes.offline_iterations(settings))
    if ground.ahead:
        from digirl_dist.collect.ahead import AheadCollector

        collector = AheadCollector(collector, ground.plan.tickets, ground.ahead, settings.train_iterations - 1)
    stack.callback(collector.close)
    return collector


def _inline_collector(ground: Ground) -> Collector:
    return inline_collector(
        ground.settings, ground.device, ground.agent, ground.store, ground.events, ground.status, ground.closing
    )


def inline_collector(
    settings: Settings,
    device: Device,
    agent: AgentFactory,
    store: Store,
    events: Events,
    status: Status,
    closing: Closing,
) -> Collector:
    """Episodes in emulator processes of this machine."""
    from digirl_dist.collect.inline import InlineCollector, InlineJob

    fixed = Choice(settings.bsize, "") if isinstance(settings.bsize, int) else None
    pool = fixed or choose(Machine.here(), device.needs)
    job = InlineJob(agent, device.factory, pool, _slot_limits(settings.limits), device.max_steps)
    return InlineCollector(job, settings.limits.episode_attempts, closing, store, events, status)


def _workers_collector(ground: Ground, stack: ExitStack) -> Collector:
    from digirl_dist.collect.dispatch import DispatchRules
    from digirl_dist.collect.fleet import FleetCollector

    settings = ground.settings
    match settings.collector:
        case RayCollectorSettings():
            fleet: Fleet[Any] = _ray_fleet(ground, settings.collector, stack)
        case _:
            fleet = _ssh_fleet(ground, stack)
    rules = DispatchRules(settings.prefetch, settings.speculate)
    return FleetCollector(fleet, settings.limits, rules, ground.closing, ground.store, ground.events, ground.status)


def _ray_fleet(ground: Ground, cluster: RayCollectorSettings, stack: ExitStack) -> Fleet[Any]:
    from digirl_dist.cluster.connect import LOCAL, connect
    from digirl_dist.cluster.line import RayDial, RayWorkerSpec
    from digirl_dist.fleet.fleet import Fleet

    settings = ground.settings
    connection = connect(LOCAL if settings.dry_run else cluster.address, cluster.start_s)
    stack.callback(connection.close)
    job = _job(ground.device, ground)
    names = [f"ray-{number}" for number in range(settings.dry_run_workers if settings.dry_run else cluster.workers)]
    folder = f"{settings.worker_temp_path}/{ground.folder.run_id}"
    slots = settings.bsize if isinstance(settings.bsize, int) else None
    workers = [(RayWorkerSpec(name, slots, f"{folder}-{name}"), job) for name in names]
    dial = RayDial(connection, cluster, settings.limits)
    return Fleet(workers, dial, settings.limits, settings.push_dtype)


def _ssh_fleet(ground: Ground, stack: ExitStack) -> Fleet[Any]:
    from digirl_dist.fleet.fleet import Fleet
    from digirl_dist.fleet.roster import localhost_members
    from digirl_dist.fleet.ssh_line import SshDial

    settings = ground.settings
    if settings.dry_run:
        found = localhost_members(settings, ground.folder.dry_run, stack)
    else:
        found = members(settings)
    package = None if settings.dry_run else _package(ground, stack)

    def prepare(member: Member) -> tuple[WorkerSpec, Job]:
        return _worker_spec(member, ground, package), _job(_own_device(member, ground), ground)

    dial = SshDial(settings.ssh, settings.limits)
    fleet = Fleet([prepare(member) for member in found], dial, settings.limits, settings.push_dtype)
    if ground.source and not settings.dry_run and not ground.source.overrides_key("worker_ips"):
        _watch_roster(ground.source, prepare, fleet, stack)
    return fleet


def _watch_roster(
    source: configuration.Source,
    prepare: Callable[[Member], tuple[WorkerSpec, Job]],
    fleet: Fleet[WorkerSpec],
    stack: ExitStack,
) -> None:
    """From now on, who is in the file's worker_ips is in the fleet."""
    from digirl_dist.fleet.watched import WatchedRoster

    roster = WatchedRoster(source.folder, lambda: members(source.load()), prepare, fleet)
    stack.callback(roster.close)
    roster.start()


def _package(ground: Ground, stack: ExitStack) -> Package:
    from digirl_dist.fleet.install import this_package

    folder = Path(stack.enter_context(TemporaryDirectory(prefix="digirl-dist-wheel-")))
    return this_package(ground.settings.install, ground.device.extras, folder)


def _worker_spec(member: Member, ground: Ground, package: Package | None) -> WorkerSpec:
    """``package`` is None for localhost workers, which use the host's own."""
    from digirl_dist.fleet.roster import installer, this_python
    from digirl_dist.fleet.spec import WorkerSpec

    folder = f"{member.temp_path}/{ground.folder.run_id}-{member.name}"
    install = this_python if package is None else installer(member, package, ground.events)
    version = "" if package is None else file_digest(package.wheel)
    limit_s = 0.0 if package is None else package.limit_s
    return WorkerSpec(member.address, member.slots, folder, install, limit_s, version)


def _own_device(member: Member, ground: Ground) -> Device:
    """The emulator with the worker's own settings, if it has any, which are checked here."""
    settings = ground.settings
    if not member.emulator:
        return ground.device
    return choose_device(settings, configuration.merged(settings.emulator, member.emulator, f"worker {member.name}"))


def _job(device: Device, ground: Ground) -> Job:
    """What a worker is to do."""
    from digirl_dist.fleet.spec import Job
    from digirl_dist.travel import pack

    settings = ground.settings
    return Job(
        run=ground.folder.run_id,
        agent=pack(ground.agent),
        emulator=pack(device.factory),
        max_steps=device.max_steps,
        limits=_slot_limits(settings.limits),
        torch_threads=settings.worker_torch_threads,
        orphan_s=settings.limits.orphan_s,
        needs=device.needs,
        sharers=settings.dry_run_workers if settings.dry_run else 1,
    )


def _slot_limits(limits: LimitSettings) -> SlotLimits:
    return SlotLimits(limits.boot_s, limits.reset_s, limits.step_s, limits.slot_failures, limits.quarantine_s)
