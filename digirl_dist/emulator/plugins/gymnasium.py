"""``emulator=gymnasium``: any Gymnasium environment."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Any, ClassVar

from digirl_dist.emulator import EmulatorFactory
from digirl_dist.emulator.plugins import Device, EmulatorPlugin
from digirl_dist.settings.ranges import Real
from digirl_dist.tasks import Task
from digirl_dist.user_code.entry_point import load_entry_point


@dataclass
class GymnasiumSettings(EmulatorPlugin):
    """Any Gymnasium environment: by ``id``, or your own class by ``entry_point: my_file:MyEnv``."""

    starts_at_once: ClassVar[bool] = True
    name: str = "gymnasium"
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

    @property
    def tells_success(self) -> bool:
        return self.success_reward is not None

    def build(self) -> Device:
        from digirl_dist.emulator.gymnasium import gymnasium_spec

        factory = self.factory()
        extras = ("atari",) if (self.id or "").startswith("ALE/") else ()
        return Device(factory, gymnasium_spec(factory), extras=extras)

    def factory(self) -> EmulatorFactory:
        """Returns what builds the emulator on a worker. Raises SettingsError for an environment that does not exist."""
        from digirl_dist.emulator.gymnasium import GymnasiumEmulator

        touch = None if self.touch is None else load_entry_point(self.touch, "emulator.touch")
        given = self.environment(), self.success_reward or 0.0, tuple(self.observe), touch
        return partial(GymnasiumEmulator, *given)

    def environment(self) -> Callable[[], Any]:
        """Returns what makes the environment itself. Raises as ``factory``."""
        from digirl_dist.emulator.gymnasium import environment_maker

        return environment_maker(self.id, self.entry_point, self.kwargs)

    def default_tasks(self, split: str) -> Sequence[Task]:
        """The one task there is: the environment itself."""
        return [Task(id=str(self.entry_point or self.id))]
