"""Which emulator, agent and algorithm the settings mean, by the type of their block; imported only when chosen."""

from __future__ import annotations

import os
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from digirl_dist.agent import AgentFactory
from digirl_dist.capacity import TYPICAL, Needs
from digirl_dist.collect.iteration import Closing
from digirl_dist.emulator import EmulatorFactory, EmulatorSpec
from digirl_dist.errors import SettingsError
from digirl_dist.judge import Judge
from digirl_dist.settings import (
    AgentSettings,
    AndroidSettings,
    AutoUiSettings,
    Close,
    CustomAgentSettings,
    CustomEmulatorSettings,
    DeviceAgentSettings,
    EmulatorSettings,
    EndpointSettings,
    GenericAgentSettings,
    GymnasiumSettings,
    Inference,
    JaxSettings,
    MiniwobSettings,
    Parallel,
    PhoneSettings,
    RehearsalSettings,
    Settings,
    Success,
    TaskMode,
    TrainAlgorithm,
    VlmSettings,
)
from digirl_dist.storage.events import Events
from digirl_dist.storage.status import Status
from digirl_dist.storage.task_file import from_file, is_file
from digirl_dist.tasks import Task
from digirl_dist.trainer.inprocess import AlgorithmFactory
from digirl_dist.user_code.entry_point import load_entry_point

if TYPE_CHECKING:
    from digirl_dist.algorithm.ppo import LearnerFactory
    from digirl_dist.inference.policy_server import PolicyServer


@dataclass(frozen=True)
class Device:
    """Everything there is to know of the chosen emulator."""

    factory: EmulatorFactory
    spec: EmulatorSpec
    tasks: Sequence[Task]
    max_steps: int | None
    extras: tuple[str, ...] = ()
    """Optional parts of the package that a worker needs for it and the agent."""
    needs: Needs = TYPICAL
    """What one of these emulators takes of a machine, for ``bsize: auto``."""


def choose_device(settings: Settings, emulator: EmulatorSettings) -> Device:
    """The emulator as the chosen agent uses it. Raises SettingsError as ``_device_alone`` does."""
    from digirl_dist.emulator.prompted import PromptedFactory, Words

    device = _device_alone(settings, emulator)
    match settings.agent:
        case AutoUiSettings(previous_actions=remembered):
            from digirl_dist.emulator.aitw import to_prompt

            words: Words = to_prompt
        case VlmSettings(previous_actions=remembered) | EndpointSettings(previous_actions=remembered):
            from digirl_dist.agent.dialogue import task_text

            words = task_text
        case _:
            return device
    acts_there = settings.inference is Inference.worker
    return replace(
        device,
        factory=PromptedFactory(device.factory, remembered, words),
        extras=(*device.extras, *[settings.agent.name] * acts_there),
    )


def _device_alone(settings: Settings, emulator: EmulatorSettings) -> Device:
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
        case AutoUiSettings():
            try:
                from digirl_dist.agent.autoui import autoui_factory
            except ImportError as error:
                raise SettingsError("agent=autoui needs transformers: pip install 'digirl_dist[autoui]'") from error
            return autoui_factory(settings, spec)
        case VlmSettings():
            try:
                from digirl_dist.agent.vlm import VlmAgent
            except ImportError as error:
                raise SettingsError("agent=vlm needs transformers and peft: pip install 'digirl_dist[vlm]'") from error
            return partial(VlmAgent, settings, spec)
        case EndpointSettings():
            try:
                from digirl_dist.agent.endpoint import EndpointAgent
            except ImportError as error:
                raise SettingsError("agent=endpoint needs openai: pip install 'digirl_dist[endpoint]'") from error
            return partial(EndpointAgent, settings, spec)
        case CustomAgentSettings():
            kind: Any = load_entry_point(settings.entry_point)
            return partial(kind, spec, **settings.kwargs)
        case _:
            raise SettingsError(f"agent: {type(settings).__name__} is not one that can be built")


def choose_host_policy(
    settings: Settings, agent: AgentFactory, log: Path, events: Events, status: Status
) -> PolicyServer | None:
    """Who acts for all workers; None where each acts itself. ``log`` gets what its process prints."""
    if settings.inference is Inference.worker:
        return None
    from digirl_dist.agent.placement import Placed
    from digirl_dist.inference.policy_server import Batching, PolicyServer
    from digirl_dist.parallel.compute_device import DeviceRequest, resolve_device, visible_devices

    device = resolve_device(
        DeviceRequest(settings.trainer.device), None, visible_devices(os.environ.get("CUDA_VISIBLE_DEVICES"))
    )
    batching = Batching(settings.inference_batch, settings.inference_wait_ms / 1000)
    return PolicyServer(Placed(agent, device), batching, settings.limits.stuck_s, log, events, status)


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
            from digirl_dist.chat.client import key_of
            from digirl_dist.judge.model import ModelJudge
            from digirl_dist.judge.verdicts import Verdicts

            return ModelJudge(settings.judge, key_of(settings.judge, "judge"), Verdicts(verdicts), events)


def check_judge(settings: Settings) -> None:
    """Refuse what ``choose_judge`` cannot build, before there is a run folder. Raises SettingsError."""
    match settings.success:
        case Success.predicate:
            if settings.predicate is None:
                raise SettingsError("success=predicate needs a function of yours: predicate=my_file:is_done")
            load_entry_point(settings.predicate)
        case Success.judge:
            try:
                from digirl_dist.chat.client import key_of
            except ImportError as error:
                raise SettingsError("success=judge needs openai: pip install 'digirl_dist[judge]'") from error
            key_of(settings.judge, "judge")


def choose_algorithm(settings: Settings, horizon: int | None) -> AlgorithmFactory:
    """``horizon``: the most steps that an episode may have, if that is known.

    Raises SettingsError for an agent that cannot learn, unless nothing is to be learned.
    """
    if isinstance(settings.agent, EndpointSettings):
        from digirl_dist.algorithm.no_training import NoTraining

        _refuse_training(settings)
        return lambda agent, peers: NoTraining()
    if isinstance(settings.trainer, JaxSettings) and settings.train_algorithm is not TrainAlgorithm.ppo:
        raise SettingsError(f"trainer=jax learns by train_algorithm=ppo, not {settings.train_algorithm.value}")
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
            learner = choose_learner(settings)
            return lambda agent, peers: PPO(agent, ppo, iterations, settings.seed, peers, learner)


def choose_learner(settings: Settings) -> LearnerFactory:
    """What makes the updates of PPO. Raises SettingsError without JAX where it is asked for."""
    match settings.trainer:
        case JaxSettings():
            need_jax()
            from digirl_dist.algorithm.ppo_jax import JaxLearner

            return JaxLearner
        case _:
            from digirl_dist.algorithm.ppo import TorchLearner

            return TorchLearner


def need_jax() -> None:
    """Raises SettingsError, naming the extra, where JAX is not installed."""
    try:
        import jax  # noqa: F401
        import optax  # noqa: F401
    except ImportError as error:
        raise SettingsError(f"trainer=jax needs JAX: pip install 'digirl_dist[jax]' ({error})") from error


def _refuse_training(settings: Settings) -> None:
    if not only_measures(settings):
        raise SettingsError(
            "agent=endpoint acts and cannot be trained: measure it, or collect with it, with task_mode=evaluate "
            "(--config-name eval), and train another agent on what it brought, with offline.data; or use agent=vlm"
        )


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
