"""``emulator=gymnasium``: any Gymnasium environment."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any, ClassVar

from digirl_dist.emulator.plugins import Device, EmulatorPlugin
from digirl_dist.settings.ranges import Real
from digirl_dist.tasks import Task


@dataclass
class GymnasiumSettings(EmulatorPlugin):
    """Any Gymnasium environment: by ``id``, or a class of yours as ``entry_point: my_file:MyEnv``."""

    starts_at_once: ClassVar[bool] = True
    name: str = "gymnasium"
    id: str | None = None
    """As registered (``CartPole-v1``, ``ALE/Pong-v5``), or ``my_file:Name-v0`` where importing my_file registers it."""
    entry_point: str | None = None
    """Your own environment class, ``my_file:MyEnv``, in place of a registered ``id``."""
    kwargs: dict[str, Any] = field(default_factory=dict)
    """What the environment is built with, beside its registered arguments."""
    success_reward: Real | None = None
    """An episode is a success when its return is above this, unless the environment says ``info["success"]``. null:
    above 0, and no rate of success is reported until there were both successes and failures."""
    observe: list[str] = field(default_factory=list)
    """Which entries of a dict observation are used; empty: all."""
    touch: str | None = None
    """What puts touch-screen actions into the environment's own form, as ``digirl_dist.emulator.browsergym:touch`` or
    ``my_file:my_function``. Such an environment takes ``agent=device``."""

    @property
    def tells_success(self) -> bool:
        return self.success_reward is not None

    def build(self) -> Device:
        from digirl_dist.emulator.gymnasium import gymnasium_factory, gymnasium_spec

        factory = gymnasium_factory(self)
        extras = ("atari",) if (self.id or "").startswith("ALE/") else ()
        return Device(factory, gymnasium_spec(factory), extras=extras)

    def tasks(self, task_set: str, split: str) -> Sequence[Task]:
        from digirl_dist.emulator.gymnasium import gymnasium_tasks

        return gymnasium_tasks(self)
