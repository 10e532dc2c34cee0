"""Any Gymnasium environment as an emulator: registered ones by id, the user's own by class."""

from __future__ import annotations

import dataclasses
import difflib
import math
import re
from collections.abc import Callable, Mapping, Sequence
from contextlib import closing, suppress
from functools import partial
from typing import Any

import gymnasium
from gymnasium.envs.registration import EnvSpec, load_env_creator

from digirl_dist.emulator import DeviceActions, EmulatorFactory, EmulatorSpec
from digirl_dist.emulator.gymnasium_actions import NativeActions
from digirl_dist.emulator.gymnasium_senses import Senses
from digirl_dist.emulator.plugins.gymnasium import GymnasiumSettings
from digirl_dist.emulator.touch_actions import DeviceAction
from digirl_dist.errors import EmulatorError, SettingsError
from digirl_dist.tasks import Task
from digirl_dist.trajectory import Observation, Transition
from digirl_dist.types import Json
from digirl_dist.user_code.blame import RAISED
from digirl_dist.user_code.entry_point import import_module, load_entry_point

EnvMaker = Callable[[], gymnasium.Env[Any, Any]]
TouchTranslator = Callable[[DeviceAction, tuple[int, int]], Any]
"""A touch-screen action, and height and width of the screen in pixels, to the environment's own action."""


class GymnasiumEmulator:
    """One environment. Fulfils ``Emulator``.

    Images become PNG, strings ``text``, everything else one flat float32 vector (see ``Senses``). Continuous actions
    beyond the bounds are clipped to them. A task's params are the options of the environment's ``reset``.
    The episode is a success when ``info["success"]`` or ``info["is_success"]`` says so; where there is neither, when
    its return so far is above ``success_reward``.
    """

    def __init__(
        self,
        make: EnvMaker,
        success_reward: float = 0.0,
        observe: Sequence[str] = (),
        touch: TouchTranslator | None = None,
    ) -> None:
        """``observe`` names the used entries of a dict observation (none: all); with ``touch``, actions are those of a
        touch screen, which it puts into the environment's own form."""
        self._env = make()
        self._name = self._env.spec.id if self._env.spec else type(self._env.unwrapped).__name__
        self._success_reward = success_reward
        for kind in ("observation_space", "action_space"):
            _refuse_other_space(getattr(self._env, kind, None), kind, self._name)
        self._senses = Senses(self._env.observation_space, observe, self._name)
        self._touch = touch
        self._actions = None if touch else NativeActions(self._env.action_space, self._name)
        self._seen = Observation()
        self._screen = (0, 0)
        self._instruction = ""
        self._return = 0.0

    @property
    def spec(self) -> EmulatorSpec:
        actions = DeviceActions() if self._actions is None else self._actions.spec
        return EmulatorSpec(actions, self._senses.vector_size, self._senses.image_size)

    def reset(self, task: Task, seed: int) -> Observation:
        self._instruction, self._return = task.instruction, 0.0
        raw, _ = self._answered("reset", self._env.reset(seed=seed, options=task.params or None), 2)
        return self._see(raw)

    def step(self, action: Json) -> Transition:
        if self._actions is not None:
            native = self._actions.native(action)
        else:
            touched = DeviceAction.from_json(action)
            if touched.type == "done":
                return Transition(self._seen, 0.0, terminated=True)
            assert self._touch is not None
            native = self._touch(touched, self._screen)
        raw, reward, terminated, truncated, info = self._answered("step", self._env.step(native), 5)
        reward = self._number(reward)
        self._return += reward
        success = info.get("success", info.get("is_success", self._return > self._success_reward))
        ends, achieved = (bool(terminated), bool(truncated)), info.get("achieved", ())
        return Transition(self._see(raw), reward, *ends, bool(success), achieved)

    def close(self) -> None:
        self._env.close()

    def measured_spec(self) -> EmulatorSpec:
        """``spec`` with the size of the first screenshot, where the observation space leaves it open."""
        spec = self.spec
        if spec.image_size is None or min(spec.image_size) > 0:
            return spec
        self.reset(Task(""), seed=0)
        return dataclasses.replace(spec, image_size=self._screen)

    def _answered(self, method: str, answer: Any, length: int) -> Any:
        """Returns the answer of an environment's method. Raises EmulatorError for one of another form, as old Gym's."""
        if isinstance(answer, Sequence) and len(answer) == length and isinstance(answer[-1], Mapping):
            return answer
        wanted = "observation and info" if length == 2 else "observation, reward, terminated, truncated and info"
        raise EmulatorError(f"{self._name}: its {method} returns no {wanted}, as Gymnasium's must; wrap what is older")

    def _number(self, reward: Any) -> float:
        with suppress(TypeError, ValueError):
            if math.isfinite(number := float(reward)):
                return number
        raise EmulatorError(f"{self._name}: its reward is {reward!r:.200}")

    def _see(self, raw: Any) -> Observation:
        self._seen, self._screen = self._senses.observation(raw, self._instruction)
        return self._seen


def gymnasium_factory(settings: GymnasiumSettings) -> EmulatorFactory:
    """What builds the emulator on a worker. Call this on the host, where the user's files are.

    The user's class is resolved here and travels inside the factory, so a worker needs neither the file nor the
    registration. Raises SettingsError for an environment that does not exist.
    """
    make = environment_maker(settings)
    touch = None if settings.touch is None else load_entry_point(settings.touch, "emulator.touch")
    return partial(GymnasiumEmulator, make, settings.success_reward or 0.0, tuple(settings.observe), touch)


def environment_maker(settings: GymnasiumSettings) -> EnvMaker:
    """What makes the environment itself, on any machine. Raises SettingsError for one that does not exist."""
    return partial(gymnasium.make, _env_spec(settings), disable_env_checker=True)


def gymnasium_spec(factory: EmulatorFactory) -> EmulatorSpec:
    """Shapes of the environment that ``factory`` builds; opens and closes one.

    Raises SettingsError when the environment cannot be built or its spaces are not supported.
    """
    try:
        with closing(factory()) as emulator:
            assert isinstance(emulator, GymnasiumEmulator)
            return emulator.measured_spec()
    except SettingsError:
        raise
    except RAISED as exc:
        raise SettingsError(f"the Gymnasium environment cannot be built: {_in_one_line(exc)}") from exc


def gymnasium_tasks(settings: GymnasiumSettings) -> list[Task]:
    """The one task there is: the environment itself."""
    return [Task(id=str(settings.entry_point or settings.id))]


# --- finding the environment ---------------------------------------------------------------------------------------


def _env_spec(settings: GymnasiumSettings) -> EnvSpec:
    if settings.id is None and settings.entry_point is None:
        raise SettingsError(
            "a Gymnasium emulator needs emulator.id, as CartPole-v1, or emulator.entry_point, as my_file:MyEnv"
        )
    if settings.id is not None and settings.entry_point is not None:
        raise SettingsError(
            f"emulator.id={settings.id} and emulator.entry_point={settings.entry_point} name two environments: set "
            "emulator.id=null or emulator.entry_point=null"
        )
    if settings.entry_point is not None:
        creator = load_entry_point(settings.entry_point, "emulator.entry_point")
        return EnvSpec(id=f"{settings.entry_point}-v0", entry_point=creator, kwargs=dict(settings.kwargs))
    registered = _registered(str(settings.id))
    creator = registered.entry_point
    if isinstance(creator, str):
        try:
            creator = load_env_creator(creator)
        except RAISED as exc:
            raise SettingsError(f"{settings.id} cannot be imported: {_in_one_line(exc)}") from exc
    return dataclasses.replace(registered, entry_point=creator, kwargs={**registered.kwargs, **settings.kwargs})


def _registered(env_id: str) -> EnvSpec:
    """The registry's entry for ``Name-v0``, ``ALE/Name-v5`` or ``module:Name-v0``."""
    module, _, name = env_id.rpartition(":")
    if module:
        _import(module)
    if name.startswith("ALE/"):
        _register_atari(name)
    try:
        return gymnasium.spec(name)
    except gymnasium.error.Error as exc:
        near = difflib.get_close_matches(name, list(gymnasium.registry), n=3, cutoff=0.5)
        hint = f"; near it are {', '.join(near)}" if near else ""
        package = re.split(r"[-/_]", name)[0].lower()
        raise SettingsError(
            f"no Gymnasium environment is registered as {name!r}{hint}; one of a package's own is written "
            f"MODULE:NAME, such as {package}:{name}, after `pip install {package}` here, and "
            f"emulator.packages=[{package}] installs it on the workers"
        ) from exc


def _import(module: str) -> None:
    try:
        import_module(module)
    except SettingsError as error:
        raise SettingsError(f"{error}{_how_to_get(error.__cause__)}") from error


def _refuse_other_space(space: object, kind: str, name: str) -> None:
    """Raises SettingsError for what is no space, or one of the package gym that Gymnasium has replaced."""
    if not isinstance(space, gymnasium.Space):
        raise SettingsError(
            f"{name}: its {kind} is {space!r:.100} ({type(space).__module__}), not a space of gymnasium"
        )


def _in_one_line(error: BaseException) -> str:
    return f"{type(error).__name__}: {' '.join(str(error).split())[:500]}{_how_to_get(error)}"


def _how_to_get(error: BaseException | None) -> str:
    """Returns how a module that is missing gets here and onto the workers; empty for another error."""
    if not isinstance(error, ModuleNotFoundError) or not error.name:
        return ""
    package = error.name.split(".")[0].replace("_", "-")
    return f"; `pip install {package}` gets it here, and emulator.packages=[{package}] onto the workers"


def _register_atari(name: str) -> None:
    try:
        import ale_py
    except ImportError as exc:
        raise SettingsError(f"{name} needs ale-py: pip install 'digirl_dist[atari]'") from exc
    gymnasium.register_envs(ale_py)
