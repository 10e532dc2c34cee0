"""Puts together what ``setup`` and ``doctor`` need, for the same configuration as a run."""

from __future__ import annotations

import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, contextmanager
from dataclasses import replace
from functools import partial
from pathlib import Path
from tempfile import mkdtemp

from digirl_dist.assembly.collectors.ssh import slurm_says
from digirl_dist.assembly.parts import (
    agent_plugin,
    build_algorithm,
    build_device,
    choose_folder,
    emulator_of,
    placed,
    refuse_devices,
    tells_success,
)
from digirl_dist.assembly.validate import refuse_unstartable
from digirl_dist.capacity import Machine, pool_size
from digirl_dist.doctor.census import Census, CensusJob, Guided, TaskCensus
from digirl_dist.doctor.check import HOST, Check
from digirl_dist.doctor.examine import Target, examine, examine_emulators, examine_host
from digirl_dist.doctor.judgement import requirements_of
from digirl_dist.doctor.setup import Preparation, SetupProgress, Tell, prepare, steps
from digirl_dist.doctor.trial import Trial, some_action
from digirl_dist.emulator import EmulatorSpec
from digirl_dist.emulator.plugins import Device, EmulatorPlugin
from digirl_dist.errors import ClusterError, SettingsError, WorkerError
from digirl_dist.fleet.install import Package, installed_python, this_package
from digirl_dist.fleet.roster import WorkerConfig, localhost_worker_configs, this_python, worker_configs
from digirl_dist.rollout.slot import slot_limits
from digirl_dist.settings import Parallel, Settings, Success
from digirl_dist.slurm.jobs import SlurmAddress
from digirl_dist.storage.status import Status, WorkerStatus
from digirl_dist.trajectory import Observation
from digirl_dist.types import Json
from digirl_dist.user_code.packing import pack

_AT_ONCE = 64


def setup(settings: Settings, dry_run: bool, tell: Tell, status: Status) -> list[WorkerError]:
    """Prepares all workers at once; returns the failures. ``status`` shows who is at which step.

    Raises SettingsError.
    """

    def prepare_one(preparation: Preparation) -> WorkerError | None:
        with _at_work(status, preparation.worker_config.name) as seen:

            def told(progress: SetupProgress) -> None:
                seen.doing, seen.since = progress.step, time.monotonic()
                tell(progress)

            return prepare(preparation, settings.ssh, told)

    if settings.dry_run and not settings.worker_ips:
        raise SettingsError("worker_ips is empty: there is no machine to prepare, and a dry run's workers need nothing")
    package = this_package(settings.install, build_device(settings, settings.emulator).extras)
    found = [_preparation(worker_config, settings, package, dry_run) for worker_config in _machines(settings)]
    with ThreadPoolExecutor(max(1, min(_AT_ONCE, len(found)))) as pool:
        return [error for error in pool.map(prepare_one, found) if error is not None]


def doctor(settings: Settings, try_emulators: bool, status: Status) -> Iterator[Check]:
    """Looks at the host and at all workers at once; ``status`` says at whom.

    What is wrong in the settings is a failed check as well.
    """

    def examine_one(target: Target) -> list[Check]:
        with _at_work(status, target.worker_config.name):
            return examine(target, settings)

    choose_folder(settings, None)
    yield from (of_host := list(examine_host(settings)))
    with ExitStack() as stack:
        try:
            device = refuse_unstartable(settings)
            if all(check.ok for check in of_host if check.check == "torch"):
                agent_plugin(settings).build(device.spec)  # an extra may be missing
                build_algorithm(settings, device)
                refuse_devices(settings)
            targets = _targets(settings, device, try_emulators, stack)
            nodes = slurm_says(settings) if settings.parallel is Parallel.host and not settings.dry_run else {}
        except (SettingsError, ClusterError) as error:
            reason, _, remedy = str(error).partition(" -> ")
            yield Check(HOST, "settings", False, reason, remedy or "correct the configuration")
            return
        yield Check(HOST, "settings", True, f"emulator={settings.emulator.name}, {len(targets) + len(nodes)} workers")
        yield from (Check(worker, "slurm", True, said) for worker, said in nodes.items())
        if settings.parallel is not Parallel.host:
            yield from examine_emulators(settings, requirements_of(settings.emulator, device.needs))
        with ThreadPoolExecutor(max(1, min(_AT_ONCE, len(targets)))) as pool:
            for checks in pool.map(examine_one, targets):
                yield from checks


def census_job(settings: Settings, episodes: int) -> CensusJob:
    """Returns what ``doctor --tasks`` plays, in emulators of this machine. Raises SettingsError."""
    if settings.success is not Success.environment:
        raise SettingsError(f"--tasks looks at the emulator's own verdicts: leave out success={settings.success.value}")
    choose_folder(settings, None)
    here = replace(settings, dry_run=settings.parallel is Parallel.host)  # whatever workers there are
    device, agent, emulator = refuse_unstartable(here), agent_plugin(settings), settings.emulator
    assert isinstance(emulator, EmulatorPlugin)
    raw = emulator.build().factory
    return CensusJob(
        emulator=agent.wrapped(partial(Guided, raw)),
        spec=device.spec,
        tasks=device.tasks,
        agent=placed(settings, agent.build(device.spec)) if agent.learns else None,
        has_oracle=hasattr(getattr(raw, "func", raw), "oracle"),
        slots=pool_size(
            settings.bsize if isinstance(settings.bsize, int) else None, Machine.here(), device.needs
        ).slots,
        limits=slot_limits(settings.limits),
        max_steps=device.max_steps,
        guard=replace(device.guard, check_action=device.guard.check_action and _within_the_space),
        tells_success=tells_success(settings),
        episodes=episodes,
        seed=settings.seed,
    )


def census(job: CensusJob, status: Status) -> list[TaskCensus]:
    """Plays the tasks; ``status`` shows how far that is. Raises CollectionError, AgentError."""

    def told(over: int, asked: int) -> None:
        status.part = over, asked

    return Census(job).take(told)


def _within_the_space(spec: EmulatorSpec, seen: Observation, action: Json) -> None:
    """Raises ActionError. Those who play here choose other actions than the run's agent."""
    spec.actions.check(action)


@contextmanager
def _at_work(status: Status, worker: str) -> Iterator[WorkerStatus]:
    """Shows the worker until the block ends."""
    status.workers[worker] = WorkerStatus("connect and look around")
    try:
        yield status.workers[worker]
    finally:
        del status.workers[worker]


def _preparation(worker_config: WorkerConfig, settings: Settings, package: Package, dry_run: bool) -> Preparation:
    emulator = emulator_of(worker_config, settings)
    script = steps(emulator, worker_config, settings.install, dry_run)
    return Preparation(worker_config, script, package.with_emulator(emulator), dry_run)


def _targets(settings: Settings, device: Device, try_emulators: bool, stack: ExitStack) -> list[Target]:
    if settings.parallel is not Parallel.host:
        return []
    if settings.dry_run:
        found = localhost_worker_configs(settings, Path(mkdtemp(prefix="digirl-dist-doctor-")), stack)
        package = None
    else:
        found = _machines(settings)
        package = this_package(settings.install, device.extras)
    return [_target(worker_config, settings, package, try_emulators) for worker_config in found]


def _machines(settings: Settings) -> list[WorkerConfig]:
    """The workers that are there before a run starts: a node that Slurm gives is looked at, and set up, by the run."""
    return [each for each in worker_configs(settings) if not isinstance(each.address, SlurmAddress)]


def _target(worker_config: WorkerConfig, settings: Settings, package: Package | None, try_emulators: bool) -> Target:
    emulator = emulator_of(worker_config, settings)
    python = this_python(None) if package is None else [installed_python(worker_config.run_path)]
    device = build_device(settings, emulator)
    starts_at_once = isinstance(emulator, EmulatorPlugin) and emulator.starts_at_once
    trial = _trial(settings, device, try_emulators) if try_emulators or starts_at_once else None
    own_package = None if package is None else package.with_emulator(emulator)
    return Target(worker_config, requirements_of(emulator, device.needs), own_package, python, trial)


def _trial(settings: Settings, device: Device, asked_for: bool) -> Trial:
    limits, spec = slot_limits(settings.limits), device.spec
    return Trial(pack(device.factory), device.tasks[0], some_action(spec.actions), limits, spec.steady, asked_for)
