"""``emulator=openenv``: any OpenEnv environment, its server beside the slot."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import TYPE_CHECKING, Any, ClassVar

from digirl_dist.emulator.plugins import Device, EmulatorPlugin
from digirl_dist.errors import EmulatorError, SettingsError
from digirl_dist.settings.expert import MISSING, expert
from digirl_dist.settings.extras import extra_needed
from digirl_dist.settings.ranges import Real, Seconds
from digirl_dist.tasks import Task

if TYPE_CHECKING:
    from digirl_dist.emulator.openenv_server import ServerSpec


@dataclass
class OpenEnvSettings(EmulatorPlugin):
    """Any OpenEnv environment: each slot starts its server behind a Unix socket that only its user can reach."""

    extras: ClassVar[tuple[str, ...]] = ("openenv",)
    name: str = "openenv"
    app: str = MISSING
    """The server's application in uvicorn's notation: ``echo_env.server.app:app``, or ``server.app:app`` in
    ``project``."""
    python: str | None = None
    """The Python with OpenEnv and the environment, on the host and on each worker; null: the worker program's, into
    which ``packages`` are installed."""
    project: str | None = None
    """Folder on the host and on each worker in which the server starts, such as a checkout of the environment."""
    variables: dict[str, str] = expert({})
    """Environment variables of the server. The run folder records them, so put no secrets here."""
    observe: list[str] = field(default_factory=list)
    """Fields of an observation that are used; empty: all but ``metadata``."""
    actions: list[dict[str, Any]] = field(default_factory=list)
    """The actions to choose from, each the JSON object of a step; empty: those of the environment's schema."""
    ready_s: Seconds = expert(120.0)
    """Longest time from the server's start to its first observation, in seconds."""
    success_reward: Real | None = None
    """An episode is a success if its return is above this. null: above 0, and no success rate is reported until there
    were both successes and failures."""

    @property
    def tells_success(self) -> bool:
        return self.success_reward is not None

    def build(self) -> Device:
        with extra_needed("emulator=openenv", "websockets", "openenv"):
            from digirl_dist.emulator.openenv import OpenEnvironment
        from digirl_dist.emulator.gymnasium import GymnasiumEmulator, gymnasium_spec

        environment = partial(OpenEnvironment, self.server(), self.observe, self.actions)
        factory = partial(GymnasiumEmulator, environment, self.success_reward or 0.0)
        return Device(factory, gymnasium_spec(factory), extras=self.extras)

    def server(self) -> ServerSpec:
        """Returns how the environment's server is started."""
        from digirl_dist.emulator.openenv_server import ServerSpec

        return ServerSpec(self.app, self.python, self.project, self.variables, self.ready_s)

    def default_tasks(self, split: str) -> Sequence[Task]:
        """Those of the environment's Task API; without one, the environment itself is the one task there is.

        The ``params`` of a task go to its reset.
        """
        with extra_needed("emulator=openenv", "websockets", "openenv"):
            from digirl_dist.emulator.openenv import listed_tasks

        try:
            return listed_tasks(self.server(), split) or [Task(id=self.app)]
        except EmulatorError as error:
            raise SettingsError(str(error)) from error
