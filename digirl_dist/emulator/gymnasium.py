"""Any Gymnasium environment as an emulator: registered ones by id, the user's own by class."""

from __future__ import annotations

import dataclasses
import difflib
import io
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

import gymnasium
import numpy as np
from gymnasium import spaces
from gymnasium.envs.registration import EnvSpec, load_env_creator
from PIL import Image

from digirl_dist.emulator import BoxActions, DeviceActions, DiscreteActions, EmulatorFactory, EmulatorSpec
from digirl_dist.emulator.plugins.gymnasium import GymnasiumSettings
from digirl_dist.emulator.touch_actions import DeviceAction
from digirl_dist.errors import SettingsError
from digirl_dist.tasks import Task
from digirl_dist.trajectory import Observation, Transition
from digirl_dist.types import Json
from digirl_dist.user_code.entry_point import import_module, load_entry_point

EnvMaker = Callable[[], gymnasium.Env[Any, Any]]
TouchTranslator = Callable[[DeviceAction, tuple[int, int]], Any]
"""A touch-screen action, and height and width of the screen in pixels, to the environment's own action."""


class GymnasiumEmulator:
    """One environment. Fulfils ``Emulator``.

    Images become PNG, strings ``text``, everything else one flat float32 vector (see ``_Senses``). Continuous
    actions beyond the bounds are clipped to them. A task's params are the options of the environment's ``reset``.
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
        self._success_reward = success_reward
        self._senses = _Senses(self._env.observation_space, observe)
        self._touch = touch
        self._actions = DeviceActions() if touch else _actions(self._env.action_space)
        self._seen = Observation()
        self._screen = (0, 0)
        self._instruction = ""
        self._return = 0.0

    @property
    def spec(self) -> EmulatorSpec:
        return EmulatorSpec(self._actions, self._senses.vector_size, self._senses.image_size)

    def reset(self, task: Task, seed: int) -> Observation:
        self._instruction, self._return = task.instruction, 0.0
        raw, _ = self._env.reset(seed=seed, options=task.params or None)
        return self._see(raw)

    def step(self, action: Json) -> Transition:
        if self._touch is None:
            self._actions.check(action)
            native = _native_action(action, self._env.action_space)
        else:
            touched = DeviceAction.from_json(action)
            if touched.type == "done":
                return Transition(self._seen, 0.0, terminated=True)
            native = self._touch(touched, self._screen)
        raw, reward, terminated, truncated, info = self._env.step(native)
        self._return += float(reward)
        success = info.get("success", info.get("is_success", self._return > self._success_reward))
        ends, achieved = (bool(terminated), bool(truncated)), info.get("achieved", ())
        return Transition(self._see(raw), float(reward), *ends, bool(success), achieved)

    def close(self) -> None:
        self._env.close()

    def measured_spec(self) -> EmulatorSpec:
        """``spec`` with the size of the first screenshot, where the observation space leaves it open."""
        spec = self.spec
        if spec.image_size is None or min(spec.image_size) > 0:
            return spec
        self.reset(Task(""), seed=0)
        return dataclasses.replace(spec, image_size=self._screen)

    def _see(self, raw: Any) -> Observation:
        self._seen = self._senses.observation(raw, self._instruction)
        self._screen = self._senses.screen(raw)
        return self._seen


def gymnasium_factory(settings: GymnasiumSettings) -> EmulatorFactory:
    """What builds the emulator on a worker. Call this on the host, where the user's files are.

    The user's class is resolved here and travels inside the factory, so a worker needs neither the file nor the
    registration. Raises SettingsError for an environment that does not exist.
    """
    make = partial(gymnasium.make, _env_spec(settings), disable_env_checker=True)
    touch = None if settings.touch is None else load_entry_point(settings.touch)
    return partial(GymnasiumEmulator, make, settings.success_reward, tuple(settings.observe), touch)


def gymnasium_spec(factory: EmulatorFactory) -> EmulatorSpec:
    """Shapes of the environment that ``factory`` builds; opens and closes one.

    Raises SettingsError when the environment cannot be built or its spaces are not supported.
    """
    try:
        emulator = factory()
    except SettingsError:
        raise
    except Exception as exc:
        raise SettingsError(f"the Gymnasium environment cannot be built: {type(exc).__name__}: {exc}") from exc
    try:
        assert isinstance(emulator, GymnasiumEmulator)
        return emulator.measured_spec()
    finally:
        emulator.close()


def gymnasium_tasks(settings: GymnasiumSettings) -> list[Task]:
    """The one task there is: the environment itself."""
    return [Task(id=str(settings.entry_point or settings.id))]


# --- finding the environment ---------------------------------------------------------------------------------------


def _env_spec(settings: GymnasiumSettings) -> EnvSpec:
    if (settings.id is None) == (settings.entry_point is None):
        raise SettingsError("a Gymnasium emulator needs either id (as CartPole-v1) or entry_point (as my_file:MyEnv)")
    if settings.entry_point is not None:
        creator = load_entry_point(settings.entry_point)
        return EnvSpec(id=f"{settings.entry_point}-v0", entry_point=creator, kwargs=dict(settings.kwargs))
    registered = _registered(str(settings.id))
    assert registered.entry_point is not None
    creator = registered.entry_point
    if isinstance(creator, str):
        creator = load_env_creator(creator)
    return dataclasses.replace(registered, entry_point=creator, kwargs={**registered.kwargs, **settings.kwargs})


def _registered(env_id: str) -> EnvSpec:
    """The registry's entry for ``Name-v0``, ``ALE/Name-v5`` or ``module:Name-v0``."""
    module, _, name = env_id.rpartition(":")
    if module:
        import_module(module)
    if name.startswith("ALE/"):
        _register_atari(name)
    try:
        return gymnasium.spec(name)
    except gymnasium.error.Error as exc:
        near = difflib.get_close_matches(name, list(gymnasium.registry), n=3, cutoff=0.5)
        hint = f"; near it are {', '.join(near)}" if near else ""
        raise SettingsError(f"no Gymnasium environment is registered as {name!r}{hint}") from exc


def _register_atari(name: str) -> None:
    try:
        import ale_py
    except ImportError as exc:
        raise SettingsError(f"{name} needs ale-py: pip install 'digirl_dist[atari]'") from exc
    gymnasium.register_envs(ale_py)


# --- actions -------------------------------------------------------------------------------------------------------


def _actions(space: spaces.Space[Any]) -> DiscreteActions | BoxActions | DeviceActions:
    if isinstance(space, spaces.Discrete):
        return DiscreteActions(int(space.n))
    if isinstance(space, spaces.Box) and np.issubdtype(space.dtype, np.floating):
        return BoxActions(tuple(space.low.ravel().tolist()), tuple(space.high.ravel().tolist()))
    raise SettingsError(
        f"the action space {space} is not supported; Discrete and Box of floats are, others with emulator.touch"
    )


def _native_action(action: Json, space: spaces.Space[Any]) -> Any:
    """The environment's own form of a JSON action inside the action space."""
    if isinstance(space, spaces.Discrete):
        return int(space.start) + action
    assert isinstance(space, spaces.Box)
    return np.clip(np.asarray(action, space.dtype).reshape(space.shape), space.low, space.high)


# --- observations --------------------------------------------------------------------------------------------------


class _Senses:
    """Which part of an observation space is text, which is the image, and which goes into the vector.

    Of a dict, only the entries that ``observe`` names are used (none named: all).

    The first uint8 array of shape [H, W], [H, W, 1] or [H, W, 3] is the image. Text spaces, and strings called
    ``mission`` or ``goal``, are text. The rest is flattened as ``gymnasium.spaces.flatten`` does.
    """

    def __init__(self, space: spaces.Space[Any], observe: Sequence[str] = ()) -> None:
        self._is_dict = isinstance(space, spaces.Dict)
        parts = _parts(space, observe)
        images = [name for name, part in parts.items() if _is_image(part)]
        self._image = images[0] if images else None
        self._texts = [name for name, part in parts.items() if _is_text(name, part)]
        rest = {name: part for name, part in parts.items() if name not in (self._image, *self._texts)}
        for name, part in rest.items():
            if not part.is_np_flattenable:
                raise SettingsError(
                    f"{name} of the observation space, {part}, has no fixed size and is not supported; "
                    "name the entries that can be used in emulator.observe"
                )
        self._rest = spaces.Dict(rest)
        shape = parts[self._image].shape if self._image else None
        self.image_size: tuple[int, int] | None = (shape[0], shape[1]) if shape else None
        self.vector_size = int(spaces.flatdim(self._rest)) if rest else 0

    def observation(self, raw: Any, instruction: str) -> Observation:
        parts = raw if self._is_dict else {"observation": raw}
        text = " ".join(str(parts[name]) for name in self._texts) or instruction
        image = _png(parts[self._image]) if self._image else None
        return Observation(text, image, self._vector(parts))

    def screen(self, raw: Any) -> tuple[int, int]:
        """Height and width of the image in an observation; zeros if there is none."""
        if self._image is None:
            return (0, 0)
        height, width = (raw if self._is_dict else {"observation": raw})[self._image].shape[:2]
        return height, width

    def _vector(self, parts: Any) -> np.ndarray | None:
        if self.vector_size == 0:
            return None
        rest = {name: parts[name] for name in self._rest.spaces}
        return np.asarray(spaces.flatten(self._rest, rest), dtype=np.float32)


def _parts(space: spaces.Space[Any], observe: Sequence[str]) -> dict[str, spaces.Space[Any]]:
    if not isinstance(space, spaces.Dict):
        return {"observation": space}
    unknown = [name for name in observe if name not in space.spaces]
    if unknown:
        raise SettingsError(f"emulator.observe: no entry {unknown[0]!r}; there are {', '.join(space.spaces)}")
    return {name: part for name, part in space.spaces.items() if not observe or name in observe}


def _is_image(space: spaces.Space[Any]) -> bool:
    """By its form and not its class: some packages have boxes of their own, of any height and width (-1)."""
    if space.shape is None or space.dtype != np.uint8:
        return False
    return len(space.shape) == 2 or (len(space.shape) == 3 and space.shape[2] in (1, 3))


def _is_text(name: str, space: spaces.Space[Any]) -> bool:
    return isinstance(space, spaces.Text) or (name in ("mission", "goal") and not space.is_np_flattenable)


def _png(pixels: np.ndarray) -> bytes:
    flat = pixels[:, :, 0] if pixels.ndim == 3 and pixels.shape[2] == 1 else pixels
    buffer = io.BytesIO()
    # Level 1 costs a fifth of the time of the default and about a tenth more bytes.
    Image.fromarray(flat).save(buffer, "png", compress_level=1)
    return buffer.getvalue()
