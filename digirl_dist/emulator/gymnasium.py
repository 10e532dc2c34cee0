"""Any Gymnasium environment as an emulator: registered ones by id, the user's own by class."""

from __future__ import annotations

import dataclasses
import math
import sys
from collections.abc import Callable, Mapping, Sequence
from contextlib import closing, suppress
from functools import partial
from typing import Any

import gymnasium
from gymnasium.envs.registration import EnvSpec, load_env_creator
from gymnasium.wrappers import OrderEnforcing, TimeLimit

from digirl_dist.emulator import DeviceActions, EmulatorFactory, EmulatorSpec
from digirl_dist.emulator.gymnasium_spaces import NativeActions, Senses
from digirl_dist.emulator.touch_actions import DeviceAction
from digirl_dist.errors import EmulatorError, SettingsError
from digirl_dist.plain_text import near_it
from digirl_dist.tasks import Task
from digirl_dist.trajectory import Observation, Transition
from digirl_dist.types import Json
from digirl_dist.user_code.blame import RAISED
from digirl_dist.user_code.entry_point import import_module, load_entry_point

EnvMaker = Callable[[], gymnasium.Env[Any, Any]]
_SUCCESS = ("success", "is_success")
"""Keys of an info, in order of precedence."""
_PROVIDERS: dict[str, tuple[str, tuple[str, ...]]] = {
    "minigrid": ("minigrid", ("MiniGrid-", "BabyAI-")),
    "highway_env": ("highway-env", ("highway-", "merge-", "roundabout-", "parking-", "intersection-", "racetrack-")),
    "gym_pusht": ("gym-pusht", ("gym_pusht/",)),
    "gym_aloha": ("gym-aloha", ("gym_aloha/",)),
    "gymnasium_robotics": ("gymnasium-robotics", ("Fetch", "AdroitHand", "PointMaze_", "AntMaze_")),
    "flappy_bird_gymnasium": ("flappy-bird-gymnasium", ("FlappyBird-",)),
    "metaworld": ("metaworld", ("Meta-World/",)),
    "mo_gymnasium": ("mo-gymnasium", ("mo-",)),
    "browsergym": ("browsergym", ("browsergym/",)),
    "ale_py": ("ale-py", ()),
    "mujoco": ("mujoco", ()),
    "pygame": ("pygame", ()),
}
"""Modules that register environments or that these need: the package that provides each, and how its ids begin."""
_METHODS = {
    "reset": "reset(*, seed=None, options=None) -> (observation, info)",
    "step": "step(action) -> (observation, reward, terminated, truncated, info)",
}
"""What every environment has, as it is written."""
TouchTranslator = Callable[[DeviceAction, tuple[int, int]], Any]
"""A touch-screen action, and height and width of the screen in pixels, to the environment's own action."""


class GymnasiumEmulator:
    """One environment. Fulfils ``Emulator``.

    Images become PNG, strings ``text``, everything else one flat float32 vector (see ``Senses``). Continuous actions
    beyond the bounds are clipped to them. A task's params are the options of the environment's ``reset``.
    The episode is a success when ``info["success"]`` or ``info["is_success"]`` said so last. Of an environment that
    never says either, it is one when its return so far is above ``success_reward``.
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
        _refuse_incomplete(self._env, self._name)
        self._senses = Senses(self._env.observation_space, observe, self._name)
        self._touch = touch
        self._actions = None if touch else NativeActions(self._env.action_space, self._name)
        self._seen = Observation()
        self._screen = (0, 0)
        self._instruction = ""
        self._return = 0.0
        self._says_success = False
        self._said: bool | None = None

    @property
    def spec(self) -> EmulatorSpec:
        actions = DeviceActions() if self._actions is None else self._actions.spec
        senses, steady = self._senses, self._touch is None  # what is touched is a browser, or another live device
        outer = self._env.env if isinstance(self._env, OrderEnforcing) else self._env
        # what is around a TimeLimit may begin it again within an episode
        longest = outer.spec.max_episode_steps if isinstance(outer, TimeLimit) and outer.spec else None
        return EmulatorSpec(actions, senses.vector_size, senses.image_size, steady=steady, longest=longest)

    def reset(self, task: Task, seed: int) -> Observation:
        self._instruction, self._return, self._said = task.instruction, 0.0, None
        raw, info = self._answered("reset", self._env.reset(seed=seed, options=task.params or None), 2)
        self._is_success(info)  # which it remembers
        return self._see(raw)

    def step(self, action: Json) -> Transition:
        if self._actions is not None:
            native = self._actions.native(action)
        else:
            touched = DeviceAction.from_json(action)
            if touched.type == "done":
                return Transition(self._seen, 0.0, terminated=True, success=self._is_success({}))
            assert self._touch is not None
            native = self._touch(touched, self._screen)
        raw, reward, terminated, truncated, info = self._answered("step", self._env.step(native), 5)
        self._return += (reward := self._number(reward))
        ends = bool(terminated), bool(truncated), self._is_success(info)
        goals = info.get("achieved")
        return Transition(self._see(raw), reward, *ends, goals if isinstance(goals, list | tuple) else ())

    def close(self) -> None:
        self._env.close()

    def measured_spec(self) -> EmulatorSpec:
        """``spec`` with the size of the first screenshot, where the observation space leaves it open."""
        spec = self.spec
        if spec.image_size is None or min(spec.image_size) > 0:
            return spec
        self.reset(Task(""), seed=0)
        return dataclasses.replace(spec, image_size=self._screen)

    def _is_success(self, info: Mapping[str, Any]) -> bool:
        """What was said last holds until the episode ends: a success may be an event of one step.

        An environment that says it of some episodes means that the others, such as truncated ones, are none.
        """
        if said := [info[name] for name in _SUCCESS if name in info]:
            self._said, self._says_success = bool(said[0]), True
        return not self._says_success and self._return > self._success_reward if self._said is None else self._said

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


def environment_maker(id: str | None, entry_point: str | None, kwargs: Mapping[str, Any]) -> EnvMaker:
    """What makes the environment itself, on any machine. Raises SettingsError for one that does not exist.

    Call this on the host, where the user's files are: the user's class is resolved here and travels inside, so a worker
    needs neither the file nor the registration.
    """
    return partial(gymnasium.make, _env_spec(id, entry_point, kwargs), disable_env_checker=True)


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


# --- finding the environment ---------------------------------------------------------------------------------------


def _env_spec(id: str | None, entry_point: str | None, kwargs: Mapping[str, Any]) -> EnvSpec:
    if id is None and entry_point is None:
        raise SettingsError(
            "a Gymnasium emulator needs emulator.id, as CartPole-v1, or emulator.entry_point, as my_file:MyEnv"
        )
    if id is not None and entry_point is not None:
        raise SettingsError(
            f"emulator.id={id} and emulator.entry_point={entry_point} name two environments: set "
            "emulator.id=null or emulator.entry_point=null"
        )
    if entry_point is not None:
        creator = load_entry_point(entry_point, "emulator.entry_point")
        if isinstance(getattr(creator, "spec", None), EmulatorSpec):
            raise SettingsError(f"emulator.entry_point={entry_point} has an EmulatorSpec: choose emulator=custom")
        return EnvSpec(id=f"{entry_point}-v0", entry_point=creator, kwargs=dict(kwargs))
    registered = _registered(str(id))
    creator = registered.entry_point
    if isinstance(creator, str):
        try:
            creator = load_env_creator(creator)
        except RAISED as exc:
            raise SettingsError(f"{id} cannot be imported: {_in_one_line(exc)}") from exc
    return dataclasses.replace(registered, entry_point=creator, kwargs={**registered.kwargs, **kwargs})


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
        hint = near_it(name, gymnasium.registry)
        remedy = _registered_by(module) if module else _where_it_may_be(name)
        raise SettingsError(f"no Gymnasium environment is registered as {name!r}{hint}; {remedy}") from exc


def _registered_by(module: str) -> str:
    """Returns what to do where importing a module did not register an environment."""
    functions = [each for each in dir(sys.modules[module]) if each.startswith("register")]
    call = (
        f"; it has {functions[0]}(): call that at the top of a file of yours, and name that file as MODULE"
        if functions
        else ""
    )
    return f"importing {module} registered no environment of that name{call}"


def _where_it_may_be(name: str) -> str:
    if not (found := [module for module, (_, prefixes) in _PROVIDERS.items() if name.startswith(prefixes)]):
        return "an environment of another package is written MODULE:NAME, with the module whose import registers it"
    return f"write {found[0]}:{name}{_installed_by(found[0])}"


def _import(module: str) -> None:
    try:
        import_module(module)
    except SettingsError as error:
        raise SettingsError(f"{error}{_how_to_get(error.__cause__)}") from error


def _refuse_incomplete(env: gymnasium.Env[Any, Any], name: str) -> None:
    """Raises SettingsError for an environment without methods or spaces of its own, naming all that it lacks.

    A space of the package gym, which Gymnasium has replaced, is none.
    """
    kind = type(env.unwrapped)
    lacks = [written for method, written in _METHODS.items() if getattr(kind, method) is getattr(gymnasium.Env, method)]
    wrong = [f"lacks {' and '.join(lacks)}"] if lacks else []
    for space in ("observation_space", "action_space"):
        if not isinstance(found := getattr(env, space, None), gymnasium.Space):
            wrong.append(f"its {space} is {found!r:.100} ({type(found).__module__}), not a space of gymnasium")
    if wrong:
        raise SettingsError(f"{name}: {'; '.join(wrong)}")


def _in_one_line(error: BaseException) -> str:
    return f"{type(error).__name__}: {' '.join(str(error).split())[:500]}{_how_to_get(error)}"


def _how_to_get(error: BaseException | None) -> str:
    """Returns how a missing module gets here and onto the workers, or how a tuple does; empty for another error."""
    if isinstance(error, ModuleNotFoundError) and error.name:
        return _installed_by(error.name.split(".")[0])
    if all(word in str(error) for word in ("list", "tuple")):  # as highway-env's
        return (
            "; emulator.kwargs has lists and no tuples: write a function that makes the environment, and name it, as "
            "emulator.entry_point=my_file:make"
        )
    return ""


def _installed_by(module: str) -> str:
    """Returns how to install a module. A package is only named if it is known: others take names that nobody has."""
    if module in _PROVIDERS:
        package = _PROVIDERS[module][0]
        return f"; `pip install {package}` installs it here, and emulator.packages=[{package}] on the workers"
    return (
        f"; install the package that provides the module {module} here, and name it in emulator.packages for the "
        "workers (a package may have another name than its module)"
    )


def _register_atari(name: str) -> None:
    try:
        import ale_py
    except ImportError as exc:
        raise SettingsError(f"{name} needs ale-py: pip install 'digirl_dist[atari]'") from exc
    gymnasium.register_envs(ale_py)
