"""Environments on machines that have only sshd, as OpenEnv environments, for clients of OpenEnv: TRL's and others'.

Any emulator of this package is one, with its tasks as OpenEnv's Task API; with ``emulator=openenv``, so is any OpenEnv
environment. OpenEnv itself need not be installed. A client's WebSocket ends in this process, which passes its messages
to an environment on some worker, and knows the episode well enough to repeat it on another one.
"""

from __future__ import annotations

import secrets
from collections.abc import Iterator, Mapping, Sequence
from contextlib import closing, contextmanager
from dataclasses import replace
from functools import partial
from typing import Any

from digirl_dist.assembly.parts import build_device
from digirl_dist.bridges.conversation import Conversation, Rewrite
from digirl_dist.bridges.remote import machines
from digirl_dist.bridges.sessions import Sessions
from digirl_dist.bridges.task_api import TaskApi
from digirl_dist.emulator.plugins import Device
from digirl_dist.emulator.plugins.openenv import OpenEnvSettings
from digirl_dist.errors import SettingsError
from digirl_dist.rollout.slot import slot_limits
from digirl_dist.settings import Settings, TaskSplit, configuration
from digirl_dist.settings.extras import extra_needed
from digirl_dist.settings.plugins import AGENT
from digirl_dist.user_code.packing import pack
from digirl_dist.worker_program.sessions import EmulatorSession

with extra_needed("bridges.openenv", "websockets, Starlette and uvicorn", "openenv"):
    from digirl_dist.bridges.openenv_door import Door
    from digirl_dist.emulator.openenv_server import HostedServer


class OpenEnvFleet:
    """Workers with environments, and the address of this machine's loopback by which clients reach them."""

    def __init__(self, sessions: Sessions, name: str, tasks: TaskApi, rewrite: Rewrite) -> None:
        self.name = name
        """The emulator's, which is the environment's in OpenEnv's Task API."""
        self.tasks = tasks
        self.door = Door(name, tasks)
        self._sessions = sessions
        self._rewrite = rewrite

    def provider(self) -> SshProvider:
        """Returns a RuntimeProvider of OpenEnv's: ``GenericEnvClient(provider=fleet.provider())``."""
        return SshProvider(self)

    @property
    def workers(self) -> dict[str, int]:
        """The number of sessions on each worker that is there."""
        return self._sessions.workers

    @property
    def moved(self) -> list[str]:
        """The reason of each loss, after which an episode was repeated elsewhere."""
        return self._sessions.moved

    def converse(self, variables: Mapping[str, str] | None = None) -> Conversation:
        """Returns a session of OpenEnv's messages without a socket, for one thread of this process at a time."""
        return Conversation(self._sessions, variables or {}, self._rewrite)

    def close(self) -> None:
        """Ends the sessions, and their environments with them."""
        self.door.close()
        self._sessions.close()


class SshProvider:
    """Fulfils OpenEnv's RuntimeProvider: ``start`` returns the address of environments that run on the workers.

    Each WebSocket to the address is a session with an environment of its own.
    """

    def __init__(self, fleet: OpenEnvFleet) -> None:
        self._fleet = fleet
        self._secret = secrets.token_urlsafe(24)

    def start(self, port: int | None = None, env_vars: dict[str, str] | None = None, **_: Any) -> str:
        """Returns an address, which holds until ``stop``. Its environments have ``env_vars``.

        Raises SettingsError for a ``port``, as all addresses share the fleet's, and for ``env_vars`` of an emulator.
        """
        if port is not None:
            raise SettingsError("an environment behind SSH is reached at the fleet's port; leave out port")
        if env_vars and self._fleet.name != OpenEnvSettings.name:
            raise SettingsError(
                "env_vars are for emulator=openenv; this fleet's emulator is set with emulator.KEY=VALUE"
            )
        self._fleet.door.admitted[self._secret] = partial(self._fleet.converse, env_vars)
        return f"{self._fleet.door.address}/{self._secret}"

    def wait_for_ready(self, timeout_s: float | None = None) -> None:
        """Does nothing: environments start with their sessions."""

    def stop(self) -> None:
        """Lets nobody in any more. Sessions end with their sockets."""
        self._fleet.door.admitted.pop(self._secret, None)

    def __enter__(self) -> SshProvider:
        self.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.stop()


@contextmanager
def openenv_fleet(
    overrides: Sequence[str], config_name: str = "host", config_path: str = "config/multimachine"
) -> Iterator[OpenEnvFleet]:
    """Installs the package on the workers of a configuration, for environments to run there.

    With ``dry_run=true``, the workers are localhost ones behind real SSH servers. Raises SettingsError or WorkerError.
    """
    settings = configuration.load(config_path, config_name, overrides)
    packed, tasks, rewrite = _environment(settings)
    with machines(settings) as found:
        sessions = Sessions(found, packed, settings.limits, settings.seed)
        with closing(OpenEnvFleet(sessions, settings.emulator.name, tasks, rewrite)) as fleet:
            yield fleet


def task_api(overrides: Sequence[str]) -> TaskApi:
    """Returns the tasks of a configuration. Raises SettingsError."""
    return _environment(configuration.load("config/multimachine", "host", overrides))[1]


def _environment(settings: Settings) -> tuple[bytes, TaskApi, Rewrite]:
    """Returns what makes a session on a worker, its tasks, and what its resets are asked."""
    emulator = settings.emulator
    if isinstance(emulator, OpenEnvSettings):  # which reads what its client asks
        tasks = TaskApi({split.value: emulator.tasks(settings.task_set, split.value) for split in TaskSplit})
        return pack(partial(HostedServer, emulator.server(), settings.limits.reset_s)), tasks, lambda data: data
    devices = {split.value: _device(settings, split) for split in TaskSplit}
    device, tasks = devices["train"], TaskApi({split: each.tasks for split, each in devices.items()})
    make = partial(EmulatorSession, pack(device.factory), slot_limits(settings.limits), device.max_steps)
    return pack(make), tasks, tasks.begin


def _device(settings: Settings, split: TaskSplit) -> Device:
    """Returns the emulator as it is, for any agent."""
    any_agent = AGENT.settings("custom")(entry_point="")
    return build_device(replace(settings, task_split=split, agent=any_agent), settings.emulator)
