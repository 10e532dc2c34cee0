"""Which Gymnasium environment is made, and how it is used."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from digirl_dist.settings.ranges import Real


@dataclass
class GymnasiumOptions:
    """Any Gymnasium environment: by ``id``, or your own class by ``entry_point: my_file:MyEnv``."""

    id: str | None = None
    """A registered id (``CartPole-v1``, ``ALE/Pong-v5``), or ``my_file:Name-v0`` if importing my_file registers it."""
    entry_point: str | None = None
    """Your own environment class, ``my_file:MyEnv``, instead of a registered ``id``."""
    kwargs: dict[str, Any] = field(default_factory=dict)
    """Arguments of the environment besides its registered ones."""
    success_reward: Real | None = None
    """An episode is a success if its return is above this, unless the environment ever sets ``info["success"]`` or
    ``info["is_success"]``. null: above 0, and no success rate is reported until there were successes and failures."""
    observe: list[str] = field(default_factory=list)
    """Entries of a dict observation that are used; empty: all."""
    touch: str | None = None
    """Function that translates touch-screen actions into the environment's own, such as
    ``digirl_dist.emulator.browsergym:touch`` or ``my_file:my_function``. With it, the environment works with
    ``agent=device``."""
