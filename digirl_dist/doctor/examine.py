"""Checks one worker: the connection to it, its machine, and the package installed there."""

from __future__ import annotations

import time
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from pathlib import Path

from digirl_dist.doctor import judgement, link, probe
from digirl_dist.doctor.check import HOST, Check
from digirl_dist.doctor.judgement import MachineRequirements
from digirl_dist.doctor.trial import Trial, try_there
from digirl_dist.emulator.starts import REMEDY
from digirl_dist.errors import InstallError, JobError, WorkerError
from digirl_dist.exit_status import interruptions_wait
from digirl_dist.fleet.install import Package, what_is_missing
from digirl_dist.fleet.remote_python import RemotePython
from digirl_dist.fleet.roster import WorkerConfig
from digirl_dist.settings import Settings
from digirl_dist.settings.extras import installation
from digirl_dist.ssh.connect import connect
from digirl_dist.ssh.connection import Connection

_PROBE_LIMIT_S = 120.0
_SETUP = "run `digirl-dist setup`; a run does it by itself as well"


@dataclass(frozen=True)
class Target:
    """A worker and a run's requirements. ``package`` None: the worker uses the host's own copy through ``python``."""

    worker_config: WorkerConfig
    requirements: MachineRequirements
    package: Package | None
    python: list[str]
    """Command of the Python that has the package once it is installed."""
    trial: Trial | None = None
    """The emulator to try, if any."""


def examine(target: Target, settings: Settings) -> list[Check]:
    """Returns all checks of one worker, without those that an earlier failure makes impossible. Raises nothing."""
    worker = target.worker_config.name
    try:
        connection = connect(target.worker_config.address, settings.ssh)
    except WorkerError as error:
        return link.unreachable(worker, error)
    checks = link.reached(connection)
    with connection:
        try:
            for check in _look_inside(target, connection, settings):
                checks.append(check)
        except WorkerError as error:
            checks.append(Check(worker, "connection", False, error.reason, error.remedy or "try again"))
    return checks


def _look_inside(target: Target, connection: Connection, settings: Settings) -> Iterator[Check]:
    """Yields the checks made over the connection. Raises WorkerError if the link breaks."""
    try:
        package = _package(target, connection)
        yield from _insides(target, connection, settings, installed=package.ok)
    except InstallError as error:
        yield Check(target.worker_config.name, "python", False, error.reason, error.remedy)
        return
    yield package
    yield from link.speed(connection)
    if target.trial is not None and (package.ok or target.trial.asked_for):
        yield from _tried(target, target.trial, connection, package.ok)


def _package(target: Target, connection: Connection) -> Check:
    """Checks the installed package. Raises InstallError if Python cannot run there, or LinkLostError."""
    worker, worker_config = target.worker_config.name, target.worker_config
    if target.package is None:
        return Check(worker, "package", True, "the host's own copy")
    missing = what_is_missing(connection, target.package, worker_config.run_path, worker_config.python)
    detail = f"{target.package.wheel.name.split('-')[1]}, digest {target.package.digest[:12]}"
    return Check(worker, "package", not missing, missing or detail, _SETUP, blocks=False)


def _insides(target: Target, connection: Connection, settings: Settings, installed: bool) -> Iterator[Check]:
    """Yields the checks of the machine. Raises InstallError if Python cannot run there, or LinkLostError."""
    worker_config, requirements = target.worker_config, target.requirements
    slots = worker_config.slots or 1  # bsize: auto takes what fits, but one must
    folders = {"run_path": worker_config.run_path, "temp_path": worker_config.temp_path}
    request = probe.ProbeRequest(
        folders={name: path for name, path in folders.items() if path},
        torch_python=target.python if installed else [],
        browser=requirements.browser,
        android=None if requirements.android is None else asdict(requirements.android),
        slots=slots,
    )
    with RemotePython(connection, worker_config.python, probe, asdict(request)) as remote:
        asked = time.time()
        facts = remote.answer(time.monotonic() + _PROBE_LIMIT_S)
        answered = time.time()
    name = worker_config.name
    try:
        checks = list(judgement.judge(name, facts, requirements, slots, settings.worker_torch_threads))
        # Right is a clock that tells a time between question and answer.
        ahead_s = min(0.0, facts["time"] - asked) + max(0.0, facts["time"] - answered)
        checks.append(judgement.clock(name, ahead_s))
    except (LookupError, TypeError, ValueError, AttributeError, ArithmeticError) as error:
        raise JobError(name, f"what the machine says of itself makes no sense: {error!r}") from error
    yield from checks


def _tried(target: Target, trial: Trial, connection: Connection, installed: bool) -> Iterator[Check]:
    worker = target.worker_config.name
    if not installed:
        yield Check(worker, "try", False, "needs the package on the worker", "run `digirl-dist setup` first")
        return
    try:
        told, follows_seed = try_there(connection, target.python, trial)
    except WorkerError as error:
        yield Check(worker, "try", False, error.reason, error.remedy)
        return
    yield Check(worker, "try", True, told)
    if not follows_seed:
        reason = f"task {trial.task.id}: two resets with seed 0 gave different observations; train_algorithm=grpo"
        yield Check(worker, "seed", False, f"{reason} compares episodes that start alike", REMEDY, blocks=False)


def examine_host(settings: Settings) -> Iterator[Check]:
    yield host_disk(Path(settings.save_path).expanduser().absolute())
    yield _torch()


def examine_emulators(settings: Settings, requirements: MachineRequirements) -> Iterator[Check]:
    """Yields the checks for a run whose emulators run on this machine."""
    android = None if requirements.android is None else asdict(requirements.android)
    slots = settings.bsize if isinstance(settings.bsize, int) else 1  # auto: whatever fits, but one must
    facts = probe.look(probe.ProbeRequest({}, [], requirements.browser, android, slots))
    yield from judgement.judge(HOST, facts, requirements, slots, settings.worker_torch_threads)


def host_disk(folder: Path) -> Check:
    facts = {"folders": {"save_path": probe.folder_facts(folder)}, "torch": None, "user": "this user"}
    return next(judgement.judge_folders(HOST, facts))


def _torch() -> Check:
    try:
        with interruptions_wait():
            import torch
    except ImportError as error:
        return Check(HOST, "torch", False, f"cannot be imported: {error}", installation("train"))
    device = torch.cuda.get_device_name() if torch.cuda.is_available() else "no GPU"
    return Check(HOST, "torch", True, f"{torch.__version__}, {torch.get_num_threads()} threads, {device}")
