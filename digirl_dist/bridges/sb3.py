"""Runs Stable-Baselines3 on a Gymnasium vector environment, such as ``FleetVectorEnv``."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import gymnasium
import numpy as np
from gymnasium.vector import AutoresetMode, VectorEnv

from digirl_dist.errors import SettingsError
from digirl_dist.settings.extras import extra_needed

with extra_needed("a runner of Stable-Baselines3", "stable-baselines3", "bridges"):
    from stable_baselines3.common.env_util import is_wrapped
    from stable_baselines3.common.vec_env import VecEnv

_COMMON = {
    "observation_space": "single_observation_space",
    "action_space": "single_action_space",
    **{name: name for name in ("spec", "metadata", "render_mode")},
}
"""What all environments have alike, by its name in the vector environment."""


class LostInfo(dict[str, Any]):
    """The info of an episode that was lost with its worker: whatever its environment would have told is None.

    Those who look an info's keys up, such as ``VecMonitor(info_keywords=…)``, would end the run otherwise.
    """

    def __missing__(self, key: str) -> None:
        return None

    def copy(self) -> LostInfo:
        return LostInfo(self)


class Sb3VecEnv(VecEnv):  # type: ignore[misc]
    """Hands ``reset`` and ``step`` on, with seeds, options and infos; an info is that of the episode which it ends."""

    def __init__(self, envs: VectorEnv[Any, Any, Any]) -> None:
        """Raises SettingsError for a vector environment whose next episodes begin a step later."""
        if envs.metadata.get("autoreset_mode") is not AutoresetMode.SAME_STEP:
            raise SettingsError("Stable-Baselines3 needs a vector environment with AutoresetMode.SAME_STEP")
        self._envs: Any = envs  # which the next call asks for its render_mode
        super().__init__(envs.num_envs, envs.single_observation_space, envs.single_action_space)
        self._actions: Any = None

    def reset(self) -> Any:
        """Raises ValueError for options that differ between environments, which a vector environment cannot tell."""
        seeds, (options, *others) = self._seeds, self._options
        if any(each != options for each in others):
            raise ValueError("set_options: the environments share one mapping, and these differ")
        self._reset_seeds()
        self._reset_options()
        seen, told = self._envs.reset(seed=seeds, options=options or None)
        self.reset_infos = [_of(told, number) for number in range(self.num_envs)]
        return seen

    def step_async(self, actions: np.ndarray) -> None:
        self._actions = actions

    def step_wait(self) -> tuple[Any, np.ndarray, np.ndarray, list[dict[str, Any]]]:
        seen, rewards, terminated, truncated, told = self._envs.step(self._actions)
        infos = []
        for number, (ends, cut) in enumerate(zip(terminated, truncated, strict=True)):
            info = _of(told, number)
            if ends or cut:
                last, final = info.pop("final_obs"), info.pop("final_info", {})
                self.reset_infos[number], info = info, {**final, "terminal_observation": last}
            kind = LostInfo if "lost" in info else dict
            infos.append(kind(info, **{"TimeLimit.truncated": bool(cut and not ends)}))
        return seen, rewards.astype(np.float32), terminated | truncated, infos

    def close(self) -> None:
        self._envs.close()

    def get_attr(self, attr_name: str, indices: Any = None) -> list[Any]:
        """Returns an attribute of each environment; of those elsewhere, what they have in common."""
        if attr_name in _COMMON:
            return [getattr(self._envs, _COMMON[attr_name], None) for _ in self._get_indices(indices)]
        return [env.get_wrapper_attr(attr_name) for env in self._here(f"{attr_name} cannot be read", indices)]

    def set_attr(self, attr_name: str, value: Any, indices: Any = None) -> None:
        for env in self._here(f"{attr_name} cannot be set", indices):
            env.set_wrapper_attr(attr_name, value)

    def env_method(self, method_name: str, *arguments: Any, indices: Any = None, **more: Any) -> list[Any]:
        called = self._here(f"{method_name} cannot be called", indices)
        return [env.get_wrapper_attr(method_name)(*arguments, **more) for env in called]

    def env_is_wrapped(self, wrapper_class: Any, indices: Any = None) -> list[bool]:
        """Says False of environments elsewhere, whose wrappers are not known here."""
        if not hasattr(self._envs, "envs"):
            return [False for _ in self._get_indices(indices)]
        return [is_wrapped(env, wrapper_class) for env in self._here("", indices)]

    def _here(self, refusal: str, indices: Any) -> list[gymnasium.Env[Any, Any]]:
        """Returns environments of this process. Raises AttributeError if they are elsewhere."""
        envs = getattr(self._envs, "envs", None)
        if envs is None:
            raise AttributeError(f"{refusal} in environments of other processes and machines")
        return [envs[index] for index in self._get_indices(indices)]


def _of(told: Mapping[str, Any], number: int) -> dict[str, Any]:
    """Returns the infos of one environment. A vector environment has beside a key, but not always, who has it."""
    masks = {f"_{key}" for key in told}
    return {
        key: _of(each, number) if isinstance(each, dict) else each[number]
        for key, each in told.items()
        if key not in masks and (f"_{key}" not in told or told[f"_{key}"][number])
    }
