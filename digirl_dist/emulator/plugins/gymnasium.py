"""``emulator=gymnasium``: any Gymnasium environment."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar

from digirl_dist.emulator.gymnasium_options import GymnasiumOptions
from digirl_dist.emulator.plugins import Device, EmulatorPlugin
from digirl_dist.tasks import Task


@dataclass
class GymnasiumSettings(GymnasiumOptions, EmulatorPlugin):
    """Any Gymnasium environment: by ``id``, or your own class by ``entry_point: my_file:MyEnv``."""

    starts_at_once: ClassVar[bool] = True
    name: str = "gymnasium"

    @property
    def tells_success(self) -> bool:
        return self.success_reward is not None

    def build(self) -> Device:
        from digirl_dist.emulator.gymnasium import gymnasium_factory, gymnasium_spec

        factory = gymnasium_factory(self)
        extras = ("atari",) if (self.id or "").startswith("ALE/") else ()
        return Device(factory, gymnasium_spec(factory, self.kwargs), extras=extras)

    def tasks(self, task_set: str, split: str) -> Sequence[Task]:
        from digirl_dist.emulator.gymnasium import gymnasium_tasks

        return gymnasium_tasks(self)
