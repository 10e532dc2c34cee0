"""TRL's GRPO with environments of a fleet: ``GRPOTrainer(environment_factory=partial(FleetEnvironment, fleet))``."""

from __future__ import annotations

import base64
import io
from typing import Any

from PIL import Image

from digirl_dist.bridges.openenv import OpenEnvFleet
from digirl_dist.bridges.text_episode import TextEpisode
from digirl_dist.errors import EmulatorError


class FleetEnvironment:
    """One environment on some worker, whose tool is ``act``. Equal rows of the dataset start alike, as groups must.

    The dataset's columns ``split`` and ``index``, or ``task_id``, name the task, and ``seed`` its start. An episode
    whose environment is lost for good has no reward, and TRL leaves it out.
    """

    def __init__(self, fleet: OpenEnvFleet, pictures: bool = False) -> None:
        """``pictures``: observations have screenshots, for a model that reads them."""
        self._fleet = fleet
        self._episode = TextEpisode(fleet.converse())
        self._pictures = pictures

    def reset(self, **row: Any) -> Any:
        """Begins an episode; returns the first observation, or why there is none: an error would end the training.

        Raises EmulatorError if no worker is left.
        """
        try:
            return self._shown(self._episode.begin(row))
        except EmulatorError as error:
            if not self._fleet.workers:
                raise
            return f"There is no episode: {error}"

    def act(self, action: str) -> Any:
        """
        Performs one action on the device.

        Args:
            action: The action, such as {"type": "tap", "x": 0.5, "y": 0.25} or {"type": "type", "text": "hello"}.

        Returns:
            What the device shows afterwards.
        """
        return self._shown(self._episode.act(action))

    def get_reward(self) -> float | None:
        """Returns the sum of the episode's rewards; None if its environment was lost."""
        return self._episode.reward

    def _shown(self, seen: dict[str, Any]) -> Any:
        text = f"{seen.get('text', '')}{' The episode is over.' if self._episode.is_over else ''}"
        if not self._pictures or not seen.get("image"):
            return text
        image = Image.open(io.BytesIO(base64.b64decode(seen["image"])), formats=("PNG", "JPEG"))
        return [{"type": "image", "image": image}, {"type": "text", "text": text}]
