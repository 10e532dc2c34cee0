"""Builds the parts of a run, each by its own settings; what is heavy is imported only then."""

from __future__ import annotations

import json
import os
from collections import Counter
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from digirl_dist.agent.plugins import AgentPlugin
from digirl_dist.agent.plugins.custom import CustomAgentSettings
from digirl_dist.algorithm.plugins import AlgorithmPlugin, LearningContext, NoTraining, OwnAlgorithm
from digirl_dist.assembly.collectors import CollectorPlugin
from digirl_dist.emulator.episode_guard import EpisodeGuard
from digirl_dist.emulator.plugins import Device, EmulatorPlugin
from digirl_dist.emulator.plugins.custom import CustomEmulatorSettings
from digirl_dist.errors import RunFolderError, SettingsError
from digirl_dist.parallel.rank import Rank
from digirl_dist.settings import (
    EmulatorSettings,
    Inference,
    Settings,
    Success,
    TaskMode,
    TorchrunSettings,
    conversion,
)
from digirl_dist.settings.plugins import AGENT, settings_classes
from digirl_dist.storage.provenance import is_experiment_of
from digirl_dist.storage.run_folder import new_run, newest_run
from digirl_dist.storage.start import start_of
from digirl_dist.storage.status import run_state
from digirl_dist.tasks import Task
from digirl_dist.user_code.entry_point import load_entry_point

if TYPE_CHECKING:
    from digirl_dist.agent import AgentFactory
    from digirl_dist.algorithm import AlgorithmFactory
    from digirl_dist.emulator import EmulatorSpec
    from digirl_dist.fleet.roster import WorkerConfig
    from digirl_dist.inference.policy_server import HostPolicy
    from digirl_dist.judge import Judge
    from digirl_dist.report.progress import Progress
    from digirl_dist.storage.events import Events
    from digirl_dist.storage.status import Status


AUTO = "auto"


def build_device(settings: Settings, emulator: EmulatorSettings) -> Device:
    """Returns the emulator as the chosen agent uses it. Raises SettingsError where it, or a task, does not exist."""
    assert isinstance(emulator, EmulatorPlugin)
    device = emulator.build()
    _refuse_misfit(settings, emulator, device.spec)
    agent, acts_there = agent_plugin(settings), settings.inference is Inference.worker
    max_steps = settings.max_steps or device.max_steps
    opaque = isinstance(agent, CustomAgentSettings) and isinstance(emulator, CustomEmulatorSettings)
    check_action = None if opaque else agent.check_action  # actions between two classes of the user's are theirs alone
    return replace(
        device,
        factory=agent.wrapped(device.factory),
        tasks=tasks_of(settings, emulator, settings.task_split.value),
        max_steps=max_steps,
        extras=(*device.extras, *(agent.extras if acts_there else ())),
        guard=EpisodeGuard(emulator.name, device.spec, max_steps, check_action, agent.learns),
    )


def tasks_of(settings: Settings, emulator: EmulatorSettings, split: str) -> Sequence[Task]:
    """Returns the tasks of a split, and starts nothing. Raises SettingsError where the set or a task does not exist."""
    from digirl_dist.storage.task_file import from_file, is_file

    assert isinstance(emulator, EmulatorPlugin)
    task_set, elsewhere = settings.task_set, settings.success is not Success.environment
    if is_file(task_set):
        tasks = from_file(task_set, split, emulator.known_tasks(split), lambda task: emulator.can_run(task, elsewhere))
    else:
        tasks = list(emulator.tasks(task_set, split))
    refuse_unstorable(tasks)
    if repeated := [found for found, times in Counter(task.id for task in tasks).items() if times > 1]:
        raise SettingsError(f"task_set {task_set} has two tasks with the id {repeated[0]!r} in {split}: rename one")
    return tasks


def refuse_unstorable(tasks: Sequence[Task]) -> None:
    """Raises SettingsError for a task that would not come to a worker, or into a file, as it is."""
    for task in tasks:
        try:
            f"{task.id:s}{task.instruction:s}".encode()
            if not isinstance(task.params, dict):
                raise TypeError(f"params is a {type(task.params).__name__}")
            json.dumps(task.params, allow_nan=False)
        except (TypeError, ValueError, RecursionError) as error:
            raise SettingsError(
                f"{task!r:.200} cannot be stored ({error}): id and instruction are text, params a JSON object"
            ) from error


def _refuse_misfit(settings: Settings, emulator: EmulatorSettings, spec: EmulatorSpec) -> None:
    """Raises SettingsError for an agent that is not made for the emulator."""
    agent = agent_plugin(settings)
    if not agent.suits.fits(spec):
        classes = settings_classes(AGENT).items()
        able = [name for name, kind in classes if issubclass(kind, AgentPlugin) and kind.suits.fits(spec)]
        raise SettingsError(
            f"agent={agent.name} is made for {agent.suits.value}, and emulator={emulator.name} has {spec.described()}: "
            f"use agent={' or '.join(able)}"
        )


def build_environment(emulator: EmulatorSettings) -> Callable[[], Any]:
    """Returns what makes the Gymnasium environment, on any machine. Raises SettingsError for another emulator."""
    from digirl_dist.emulator.plugins.gymnasium import GymnasiumSettings

    if not isinstance(emulator, GymnasiumSettings):
        raise SettingsError(f"a vector environment has emulator=gymnasium, not {emulator.name}")
    return emulator.environment()


def emulator_of(worker_config: WorkerConfig, settings: Settings) -> EmulatorSettings:
    """Returns a worker's own emulator settings, if it has any, else those of the run. Raises SettingsError."""
    if not worker_config.emulator:
        return settings.emulator
    own = conversion.merged(settings.emulator, worker_config.emulator, f"worker {worker_config.name}")
    assert isinstance(own, EmulatorSettings)
    return own


def tells_success(settings: Settings) -> bool:
    """Returns whether an episode's success means something even where all episodes are alike in it."""
    emulator = settings.emulator
    by_emulator = isinstance(emulator, EmulatorPlugin) and emulator.tells_success
    return by_emulator or settings.success is not Success.environment


def follow_verdicts(progress: Progress, settings: Settings) -> None:
    """Has ``progress`` count the successes that whoever judges sees."""
    progress.tells_success = tells_success(settings)
    progress.verdict = "episode" if settings.success is Success.environment else "judged"


def agent_plugin(settings: Settings) -> AgentPlugin:
    """Returns the chosen agent's settings, which build it."""
    assert isinstance(settings.agent, AgentPlugin)
    return settings.agent


def collector_plugin(settings: Settings) -> CollectorPlugin:
    """Returns the chosen collector's settings, which build it."""
    assert isinstance(settings.collector, CollectorPlugin)
    return settings.collector


def algorithm_plugin(settings: Settings) -> AlgorithmPlugin:
    """Returns the settings of the algorithm in use, which build it."""
    algorithm = settings.algorithm
    if algorithm.entry_point is not None:
        return OwnAlgorithm(algorithm.entry_point, algorithm.kwargs)
    block = getattr(algorithm, settings.train_algorithm)
    assert isinstance(block, AlgorithmPlugin)
    return block


def choose_folder(settings: Settings, rank: Rank | None, resume: bool = False, name: str = "") -> None:
    """Puts a folder in the place of ``save_path=auto``: that of a run that goes on, or a new one of this name.

    Raises SettingsError for a rank of a launch: each would choose by itself.
    """
    if settings.save_path != AUTO:
        return
    if rank is not None:
        raise SettingsError("save_path=auto is chosen by each process of a launch for itself: give save_path=runs/NAME")
    name = name or f"{settings.emulator.name}-{_what_is_done(settings)}"
    is_here = (Path() / "run.json").exists()
    newest = Path() if is_here else newest_run(name)
    resume = resume or is_here or settings.task_mode is TaskMode.evaluate
    goes_on = newest is not None and (resume or _goes_on(newest, settings))
    settings.save_path = str(newest if goes_on else new_run(name))


def _what_is_done(settings: Settings) -> str:
    if settings.task_mode is TaskMode.collect:
        return "collect"
    return "own" if settings.algorithm.entry_point is not None else settings.train_algorithm


def _goes_on(run: Path, settings: Settings) -> bool:
    """Returns whether the run has not finished, and is the experiment that the settings describe."""
    with suppress(RunFolderError):
        return run_state(run).state != "finished" and is_experiment_of(run, conversion.as_mapping(settings))
    return False


def run_root(settings: Settings) -> Path:
    """Returns the run folder."""
    return Path(settings.save_path).expanduser().resolve()


def starting(settings: Settings, agent: AgentFactory) -> AgentFactory:
    """Returns what makes the agent that learns: with the policy of ``start_from`` if the run begins there."""
    from digirl_dist.agent.placement import StartedFrom

    start = start_of(settings.start_from, run_root(settings))
    return agent if start is None else StartedFrom(agent, start.checkpoint)


def record_start(settings: Settings, events: Events) -> None:
    """Leaves a record in the run folder of where the run starts, if that is another run."""
    start = start_of(settings.start_from, run_root(settings))
    if start is not None:
        record = start.record(run_root(settings))
        events.emit("started_from", checkpoint=record["checkpoint"], run_id=record["run_id"])


def placed(settings: Settings, agent: AgentFactory) -> AgentFactory:
    """Returns what makes the agent where it acts on the host: on ``trainer.device``. Raises DeviceError."""
    from digirl_dist.agent.placement import Placed

    return Placed(agent, device_of(settings, None))


def refuse_devices(settings: Settings, rank: Rank | None = None) -> None:
    """Raises DeviceError for a ``trainer.device`` that is not there, or too few devices for the training processes of
    this machine."""
    if rank is None and isinstance(settings.trainer, TorchrunSettings):
        ranks = settings.trainer.nproc_per_node
        rank = Rank(0, ranks, 0, ranks)
    _resolved(settings, rank, None)  # what a mask of this process shows is for all that it starts


def device_of(settings: Settings, rank: Rank | None) -> str:
    """Returns the device on which this process computes. Raises DeviceError."""
    return _resolved(settings, rank, os.environ.get("CUDA_VISIBLE_DEVICES"))


def _resolved(settings: Settings, rank: Rank | None, mask: str | None) -> str:
    from digirl_dist.parallel.compute_device import DeviceRequest, resolve_device, visible_devices

    return resolve_device(DeviceRequest(settings.trainer.device), rank, visible_devices(mask))


def build_algorithm(settings: Settings, device: Device) -> AlgorithmFactory:
    """Returns what makes the algorithm, for the device's episodes and tasks. Raises SettingsError."""
    if not agent_plugin(settings).learns:
        return lambda agent, peers: NoTraining()
    return algorithm_plugin(settings).build(
        LearningContext(
            settings.seed,
            settings.train_iterations,
            device.max_steps,
            device.tasks,
            settings.algorithm,
            tells_success(settings),
        )
    )


def build_host_policy(
    settings: Settings,
    agent: AgentFactory,
    log: Path,
    events: Events,
    status: Status,
    acts_here: bool = False,
    newest: bool = False,
) -> HostPolicy | None:
    """Returns what acts for all workers; None where each acts itself. ``log`` gets what its process prints.

    ``acts_here``: in this process, as what is the caller's must. ``newest``: that version acts for all episodes.
    """
    if settings.inference is Inference.worker:
        return None
    from digirl_dist.inference.engine_policies import EnginePolicies, Outages, ServedAgent
    from digirl_dist.inference.policy_server import Batching, InThisProcess, PolicyProcess, PolicyServer
    from digirl_dist.user_code.packing import pack

    made: Any = agent() if acts_here or agent_plugin(settings).chat else None
    is_served = isinstance(made, ServedAgent)
    if is_served:
        server, at_once = (
            (f"{made.acting.model} at {made.acting.url}", made.acting.at_once)
            if acts_here
            else (str(made.connect()), settings.inference_batch)
        )
        made.away = outages = Outages(events, status, server)
        return EnginePolicies(made, at_once, outages, made.close, newest)
    batching, limit_s = Batching(settings.inference_batch, settings.inference_wait_ms / 1000), settings.limits.stuck_s
    if acts_here:
        return PolicyServer(InThisProcess(made, limit_s), batching, limit_s, events, status)
    process = PolicyProcess(pack(placed(settings, agent)), log, limit_s, newest)
    return PolicyServer(process, batching, limit_s, events, status)


def build_judge(settings: Settings, verdicts: Path, events: Events) -> Judge | None:
    """Returns None where the emulator judges. ``verdicts`` is the file in which those of a model are kept."""
    match settings.success:
        case Success.environment:
            return None
        case Success.predicate:
            from digirl_dist.judge import PredicateJudge

            name = str(settings.predicate)
            return PredicateJudge(load_entry_point(name, "predicate"), name)
        case Success.judge:
            from digirl_dist.chat.client import key_of
            from digirl_dist.judge.model import ModelJudge, Verdicts

            return ModelJudge(settings.judge, key_of(settings.judge, "judge"), Verdicts(verdicts), events)
