"""A fleet's environments in SkyRL: ``skyrl_gym.register("phone", partial(FleetTextEnv, fleet))``."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from digirl_dist.bridges.openenv import OpenEnvFleet
from digirl_dist.bridges.text_episode import TextEpisode
from digirl_dist.settings.extras import extra_needed

with extra_needed("bridges.skyrl", "skyrl-gym", "skyrl"):
    from skyrl_gym.envs.base_text_env import BaseTextEnv, BaseTextEnvStepOutput

Chat = list[dict[str, str]]


class FleetTextEnv(BaseTextEnv):  # type: ignore[misc]
    """One environment on some worker, which a language model plays by texts that name touch-screen actions.

    ``extras`` are a row of the dataset: ``split`` and ``index``, or ``task_id``, name the task, and ``seed`` its start.
    Rows that are equal otherwise start alike, as groups must. SkyRL has no way to leave an episode out: one whose
    environment is lost on as many workers as ``limits.episode_attempts`` says raises, and is never a reward of 0.
    """

    def __init__(self, fleet: OpenEnvFleet, env_config: Any = None, extras: Mapping[str, Any] | None = None) -> None:
        super().__init__()
        self._episode = TextEpisode(fleet.converse())
        self._row = dict(extras or {})

    def init(self, prompt: Chat) -> tuple[Chat, dict[str, Any]]:
        """Returns the dataset's prompt with what the device shows. Raises EmulatorError."""
        return [*prompt, {"role": "user", "content": self._episode.begin(self._row)["text"]}], {}

    def step(self, action: str) -> BaseTextEnvStepOutput:
        """Carries out the action that the text names, ``wait`` if it names none. Raises EmulatorError."""
        before = self._episode.reward or 0.0
        seen = self._episode.act(action)
        shown = [] if self._episode.is_over else [{"role": "user", "content": seen["text"]}]
        reward = (self._episode.reward or 0.0) - before
        return BaseTextEnvStepOutput(observations=shown, reward=reward, done=self._episode.is_over, metadata={})

    def close(self) -> None:
        self._episode.close()
