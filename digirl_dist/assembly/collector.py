"""How episodes are collected: builds the collector that the settings ask for, with everything below it."""

from __future__ import annotations

import sys
import warnings
from collections.abc import Callable
from contextlib import ExitStack
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from digirl_dist.agent import AgentFactory
from digirl_dist.assembly import schedule
from digirl_dist.assembly.parts import (
    agent_plugin,
    build_device,
    build_host_policy,
    build_judge,
    collector_plugin,
    emulator_of,
    placed,
)
from digirl_dist.capacity import Machine, pool_size
from digirl_dist.collect import Collector
from digirl_dist.collect.leases import LeaseLedger
from digirl_dist.collect.offline import OfflineCollector, OfflineFirst, StoredCollector
from digirl_dist.collect.pace import Lengths
from digirl_dist.collect.pool import Pool
from digirl_dist.emulator.plugins import Device
from digirl_dist.fleet.ledger import Shares
from digirl_dist.fleet.roster import worker_configs
from digirl_dist.judge import Judges
from digirl_dist.report.output import redraws
from digirl_dist.report.progress import message
from digirl_dist.rollout.slot import slot_limits
from digirl_dist.settings import Inference, OpenAIEngineSettings, Parallel, Settings, configuration
from digirl_dist.settings.run import needs_emulators
from digirl_dist.storage import json_lines
from digirl_dist.storage.events import Events
from digirl_dist.storage.run_folder import RunFolder
from digirl_dist.storage.status import Status
from digirl_dist.storage.trajectory_store import Store
from digirl_dist.tasks import Plan, Round
from digirl_dist.types import Json

if TYPE_CHECKING:
    from digirl_dist.assembly.collectors.ray import RayCollectorSettings
    from digirl_dist.fleet.fleet import Fleet
    from digirl_dist.fleet.install import Package
    from digirl_dist.fleet.roster import WorkerConfig
    from digirl_dist.fleet.spec import Job, WorkerSpec
    from digirl_dist.inference.policy_server import HostPolicy
    from digirl_dist.slurm.nodes import Nodes


_NEWEST_EVENTS = 4 << 20
"""Bytes of events in which the lengths of earlier episodes are looked for."""


@dataclass(frozen=True)
class RunContext:
    """What the parts of one run stand on."""

    settings: Settings
    device: Device
    agent: AgentFactory
    plan: Plan
    folder: RunFolder
    store: Store
    events: Events
    status: Status
    measured: int | None = None
    """The policy version, if that is measured and nothing is learned."""
    source: configuration.Source | None = None
    """Where the settings came from, if workers that are added there while the run goes on shall join it."""
    acts_here: bool = False
    """Whether the agent is the caller's, a function or an endpoint, which acts for all workers."""
    newest: bool = False
    """Whether what acts on the host is the newest policy, also in episodes that began before."""
    shares: Shares = field(default_factory=Shares)
    """What the workers' episodes have cost; one for all of them."""


def build_collector(context: RunContext, stack: ExitStack) -> Collector:
    """Returns the collector; ``stack`` takes it down at the end whatever happens."""
    settings = context.settings
    if not needs_emulators(settings):
        return OfflineCollector()
    if context.measured is not None:
        rounds = [Round(number, "measure", context.measured) for number in range(settings.eval_iterations)]
        ended = (context.store.landed(each) for each in rounds if context.store.has(each))
        if [len(episodes) for episodes in ended] == [settings.rollout_size] * len(rounds):
            return StoredCollector(context.store)
    return OfflineFirst(build_pool(context, stack), schedule.offline_iterations(settings))


def build_pool(context: RunContext, stack: ExitStack) -> Pool:
    """Returns what runs episodes, and has them judged; ``stack`` closes it."""
    settings, told = context.settings, (context.store, context.events, context.status)
    if settings.parallel is Parallel.host:
        pool = collector_plugin(settings).build(context, stack)
    else:
        acts = Inference.host if agent_plugin(settings).chat else settings.inference
        policy = _host_policy(replace(context, settings=replace(settings, inference=acts, inference_wait_ms=0.0)))
        if policy is not None:
            stack.callback(policy.close)
        agent = placed(settings, context.agent)
        pool = inline_collector(settings, context.device, agent, *told, policy, _lengths(context))
    stack.callback(pool.close)
    if (judge := build_judge(settings, context.folder.verdicts, context.events)) is not None:
        pool.judges = Judges(judge, context.events)
    return pool


def _lengths(context: RunContext) -> Lengths:
    """Returns how long each task's episodes took so far."""
    return Lengths(json_lines.read(context.folder.events, _NEWEST_EVENTS))


def inline_collector(
    settings: Settings,
    device: Device,
    agent: AgentFactory,
    store: Store,
    events: Events,
    status: Status,
    policy: HostPolicy | None = None,
    lengths: Lengths | None = None,
) -> Pool:
    """Episodes in emulator processes of this machine; ``policy`` acts in them in place of the agent."""
    from digirl_dist.collect.inline import InlineCollector, InlineJob

    pool = pool_size(settings.bsize if isinstance(settings.bsize, int) else None, Machine.here(), device.needs)
    job = InlineJob(agent, device.factory, pool, slot_limits(settings.limits), device.max_steps, device.guard, policy)
    limits = settings.limits
    return InlineCollector(job, limits.episode_attempts, limits.set_aside_share, store, events, status, lengths)


def fleet_collector(fleet: Fleet[Any], context: RunContext) -> Pool:
    """Episodes on the workers of a fleet."""
    from digirl_dist.collect.dispatch import DispatchRules
    from digirl_dist.collect.fleet_collector import FleetCollector

    settings = context.settings
    return FleetCollector(
        fleet,
        settings.limits,
        DispatchRules(settings.prefetch, settings.speculate),
        context.store,
        context.events,
        context.status,
        context.device.guard.most_steps,
        ledger=LeaseLedger(context.folder.leases),
        lengths=_lengths(context),
    )


def ray_fleet(context: RunContext, cluster: RayCollectorSettings, stack: ExitStack) -> Fleet[Any]:
    """Workers as actors of a Ray cluster."""
    from digirl_dist.fleet.fleet import Fleet
    from digirl_dist.ray_cluster.connect import LOCAL, connect
    from digirl_dist.ray_cluster.connection import RayConnector, RayWorkerSpec

    settings = context.settings
    connection = connect(LOCAL if settings.dry_run else cluster.address, cluster.start_s)
    stack.callback(connection.close)
    job = _job(context.device, context)
    names = [f"ray-{number}" for number in range(settings.dry_run_workers if settings.dry_run else cluster.workers)]
    folder = f"{settings.worker_temp_path}/{context.folder.run_id}"
    slots = settings.bsize if isinstance(settings.bsize, int) else None
    workers = [(RayWorkerSpec(name, slots, f"{folder}-{name}"), job) for name in names]
    connector = RayConnector(connection, cluster, settings.limits)
    return Fleet(workers, connector, settings.limits, settings.push_dtype, _host_policy(context))


def ssh_fleet(context: RunContext, stack: ExitStack) -> Fleet[Any]:
    """Workers on machines over SSH, or on localhost in a dry run."""
    from digirl_dist.fleet.fleet import Fleet
    from digirl_dist.fleet.install import this_package
    from digirl_dist.fleet.relay import Relays
    from digirl_dist.fleet.roster import localhost_worker_configs
    from digirl_dist.fleet.ssh_connection import SshConnector

    settings = context.settings
    if settings.dry_run:
        found = localhost_worker_configs(settings, context.folder.dry_run, stack)
    else:
        found = worker_configs(settings)
    package = None if settings.dry_run else this_package(settings.install, context.device.extras)

    def prepare(worker_config: WorkerConfig) -> tuple[WorkerSpec, Job]:
        return _worker_spec(worker_config, context, package), _job(_own_device(worker_config, context), context)

    relays = Relays(settings.limits.quarantine_s)
    connector = SshConnector(settings.ssh, settings.limits, _slurm_nodes(context, stack), relays)
    prepared = [prepare(worker_config) for worker_config in found]
    fleet = Fleet(prepared, connector, settings.limits, settings.push_dtype, _host_policy(context))
    if context.source and not settings.dry_run and not context.source.overrides_key("worker_ips"):
        _watch_roster(context.source, prepare, fleet, stack)
    return fleet


def _slurm_nodes(context: RunContext, stack: ExitStack) -> Nodes:
    """The nodes that Slurm gives to workers; their jobs end with the run."""
    from digirl_dist.slurm.jobs import Jobs
    from digirl_dist.slurm.nodes import Nodes

    settings, limits = context.settings, context.settings.limits
    name = f"digirl-dist-{context.folder.run_id}"
    silence_s = max(limits.orphan_s + limits.back_off_max_s, settings.ssh.silence_s)  # within which there are pings
    jobs = Jobs(settings.slurm, name, context.folder.root.absolute() / "slurm", silence_s)
    nodes = Nodes(jobs, settings.ssh, settings.slurm.pending_s)
    stack.callback(nodes.close)
    return nodes


def _watch_roster(
    source: configuration.Source,
    prepare: Callable[[WorkerConfig], tuple[WorkerSpec, Job]],
    fleet: Fleet[WorkerSpec],
    stack: ExitStack,
) -> None:
    """From now on, who is in the file's worker_ips is in the fleet."""
    from digirl_dist.fleet.roster import WatchedRoster

    roster = WatchedRoster(source.folder, lambda: worker_configs(source.load()), prepare, fleet)
    stack.callback(roster.close)
    roster.start()


def _worker_spec(worker_config: WorkerConfig, context: RunContext, package: Package | None) -> WorkerSpec:
    """``package`` is None for localhost workers, which use the host's own."""
    from digirl_dist.fleet.roster import install, this_python
    from digirl_dist.fleet.spec import WorkerSpec

    folder = f"{worker_config.temp_path}/{context.folder.run_id}-{worker_config.name}"
    if package is not None:
        package = package.with_emulator(emulator_of(worker_config, context.settings))
    installer = this_python if package is None else partial(install, worker_config, package, context.events)
    version = "" if package is None else package.digest
    limit_s = 0.0 if package is None else package.limit_s
    return WorkerSpec(
        worker_config.address,
        worker_config.slots,
        folder,
        installer,
        limit_s,
        version,
        worker_config.site,
        worker_config.site_address,
    )


def _own_device(worker_config: WorkerConfig, context: RunContext) -> Device:
    """The emulator with the worker's own settings, if it has any, which are checked here."""
    settings = context.settings
    if not worker_config.emulator:
        return context.device
    return build_device(settings, emulator_of(worker_config, settings))


def _job(device: Device, context: RunContext) -> Job:
    """What a worker is to do."""
    from digirl_dist.fleet.spec import Job
    from digirl_dist.user_code.packing import pack

    settings = context.settings
    return Job(
        run=context.folder.run_id,
        agent=None if settings.inference is Inference.host else pack(context.agent),
        emulator=pack(device.factory),
        max_steps=device.max_steps,
        limits=slot_limits(settings.limits),
        torch_threads=settings.worker_torch_threads,
        orphan_s=settings.limits.orphan_s,
        needs=device.needs,
        sharers=settings.dry_run_workers if settings.dry_run else 1,
        answer_s=settings.limits.stuck_s,
        host=context.folder.host,
        guard=device.guard,
        shares=context.shares,
    )


def _host_policy(context: RunContext) -> HostPolicy | None:
    settings = context.settings
    if isinstance(settings.engine, OpenAIEngineSettings):
        from digirl_dist.assembly.engine import build_engine

        return build_engine(context, settings.engine)
    log = context.folder.root / "policy.log"
    return build_host_policy(
        settings, context.agent, log, context.events, context.status, context.acts_here, context.newest
    )


@dataclass(frozen=True)
class OpenFleet:
    """A pool with a run folder of its own, for a program that decides itself what is collected."""

    context: RunContext
    pool: Pool


def open_fleet(
    settings: Settings, device: Device, agent: AgentFactory, root: Path, stack: ExitStack, acts_here: bool = False
) -> OpenFleet:
    """Starts the fleet; ``stack`` takes everything down again."""
    folder = stack.enter_context(RunFolder(root, configuration.to_yaml(settings)))
    events = folder.open_events((_warn,))
    stack.callback(events.close)
    status = Status(folder.root / "status.json")
    stack.enter_context(status.until_the_end_of("the fleet", events))
    plan = Plan(device.tasks, 1, settings.seed)
    store = Store(folder.trajectories)
    store.sweep()
    parts = settings, device, agent, plan, folder, store, events, status
    context = RunContext(*parts, acts_here=acts_here, newest=True)
    pool = build_pool(context, stack)
    status.host(None)
    return OpenFleet(context, pool)


def _warn(kind: str, content: dict[str, Json]) -> None:
    """Tells of a server that is away where no bar does."""
    if kind == "engine_away" and not redraws(sys.stderr):
        warnings.warn(str(message(kind, content)), stacklevel=1)
