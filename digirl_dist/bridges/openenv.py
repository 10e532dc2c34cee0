"""OpenEnv environments on machines that have only sshd, for clients of OpenEnv: TRL's and others'.

``SshProvider`` fulfils OpenEnv's RuntimeProvider; OpenEnv itself need not be installed here. A client's WebSocket ends
in this process, which hands its messages on to a server of its own on some worker, and knows the episode well enough
to repeat it on another one.
"""

from __future__ import annotations

import itertools
import json
import secrets
import threading
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace
from functools import partial
from http import HTTPStatus
from typing import Any

import msgspec

from digirl_dist.bridges.remote import Machine, Remote, machines
from digirl_dist.emulator.plugins.openenv import OpenEnvSettings
from digirl_dist.errors import EmulatorError, SettingsError, WorkerError
from digirl_dist.settings import LimitSettings, configuration
from digirl_dist.settings.extras import extra_needed
from digirl_dist.storage.digest import digest
from digirl_dist.user_code.packing import pack

with extra_needed("bridges.openenv", "websockets", "openenv"):
    from websockets.exceptions import ConnectionClosed
    from websockets.http11 import Request, Response
    from websockets.sync.server import Server, ServerConnection, serve

    from digirl_dist.emulator.openenv_server import HostedServer

_MOST_BYTES = 64 << 20
_LOOPBACK = "127.0.0.1"


class OpenEnvFleet:
    """Workers that run OpenEnv servers, and the port of this machine's loopback by which clients reach them.

    The address of each provider has a secret part, so other users of this machine reach none of them.
    """

    def __init__(self, settings: OpenEnvSettings, found: Sequence[Machine], limits: LimitSettings, seed: int) -> None:
        self.moved: list[str] = []
        """The reason of each loss of a server, after which its episode was repeated on another one."""
        self.limits = limits
        self.seeds = itertools.count(seed + 1)
        self.providers: dict[str, SshProvider] = {}
        self._settings = settings
        self._machines = {machine.name: machine for machine in found}
        self._busy: Counter[str] = Counter()
        self._talking: set[ServerConnection] = set()
        self._lock = threading.Lock()
        self._server: Server = serve(
            self._talk, _LOOPBACK, 0, process_request=self._admit, max_size=_MOST_BYTES, compression=None
        )
        self.address = f"http://{_LOOPBACK}:{self._server.socket.getsockname()[1]}"
        threading.Thread(target=self._server.serve_forever, name="openenv-door", daemon=True).start()

    def provider(self) -> SshProvider:
        """Returns a RuntimeProvider of OpenEnv's, for one client: ``EchoEnv(provider=fleet.provider())``."""
        return SshProvider(self)

    @property
    def workers(self) -> dict[str, int]:
        """The number of servers on each worker that is there."""
        return {name: self._busy[name] for name in self._machines}

    def close(self) -> None:
        """Ends the sessions and the servers."""
        self._server.shutdown()
        for connection in list(self._talking):
            connection.close()
        for provider in list(self.providers.values()):
            provider.stop()

    def start(self, variables: Mapping[str, str]) -> Remote:
        """Starts a server on the worker with the fewest. Raises WorkerError if no worker is left, EmulatorError."""
        wanted = replace(self._settings, variables={**self._settings.variables, **variables})
        hosted = pack(partial(HostedServer, wanted.server()))
        reasons: list[str] = []
        while True:
            with self._lock:
                if not self._machines:
                    raise WorkerError("the fleet", f"no worker is left: {'; '.join([*self.moved, *reasons])}")
                machine = min(self._machines.values(), key=lambda each: self._busy[each.name])
                self._busy[machine.name] += 1
            try:
                remote = machine.start(hosted)
                remote.send("say", [])  # it answers once it is ready
                remote.answer(self.limits.boot_s)
                return remote
            except (WorkerError, EmulatorError) as error:
                reasons.append(str(error))
                if self._left(machine.name, is_lost=True):
                    raise

    def end(self, remote: Remote, error: Exception | None = None) -> None:
        """Ends a server; with ``error``, one that is lost, perhaps with its worker."""
        remote.close()
        if error is not None:
            self.moved.append(f"{remote.name}: {error}")
        self._left(remote.name, is_lost=error is not None)

    def _left(self, name: str, is_lost: bool) -> bool:
        """Notes that a worker has a server less, which it may have lost; returns whether the worker is there."""
        machine = self._machines.get(name)
        is_gone = machine is not None and is_lost and not machine.connection.answers()
        with self._lock:
            self._busy[name] -= 1
            if is_gone and (machine := self._machines.pop(name, None)) is not None:
                machine.connection.close()
            return name in self._machines

    def _admit(self, connection: ServerConnection, request: Request) -> Response | None:
        _, secret, *rest = (*request.path.split("/", 2), "")
        if secret not in self.providers or rest[0] not in ("ws", "health"):
            return connection.respond(HTTPStatus.NOT_FOUND, "there is /ws and /health, below a provider's address\n")
        return connection.respond(HTTPStatus.OK, '{"status": "healthy"}') if rest[0] == "health" else None

    def _talk(self, connection: ServerConnection) -> None:
        assert connection.request is not None
        session = _Session(self, self.providers[connection.request.path.split("/")[1]])
        self._talking.add(connection)
        try:
            for message in connection:
                if (answer := session.answer(str(message))) is None:
                    break
                connection.send(answer)
        except ConnectionClosed:
            pass
        finally:
            self._talking.discard(connection)
            session.lose(None)


class SshProvider:
    """Fulfils OpenEnv's RuntimeProvider: ``start`` returns the address of an environment that runs on some worker.

    Each WebSocket to the address is a session with a server of its own, so there may be any number of them. The first
    session has the server that ``start`` starts.
    """

    def __init__(self, fleet: OpenEnvFleet) -> None:
        self._fleet = fleet
        self._secret = secrets.token_urlsafe(24)
        self._variables: dict[str, str] = {}
        self._first: list[Remote] = []

    def start(self, port: int | None = None, env_vars: dict[str, str] | None = None, **_: Any) -> str:
        """Starts a server, with ``env_vars`` in its environment, and returns its address, which holds until ``stop``.

        Raises SettingsError for a ``port``: all addresses share the fleet's. Raises WorkerError or EmulatorError.
        """
        if port is not None:
            raise SettingsError("an environment behind SSH is reached at the fleet's port; leave out port")
        self._variables = dict(env_vars or {})
        self._first = [self._fleet.start(self._variables)]
        self._fleet.providers[self._secret] = self
        return f"{self._fleet.address}/{self._secret}"

    def wait_for_ready(self, timeout_s: float | None = None) -> None:
        """Does nothing: the server was ready when ``start`` returned."""

    def stop(self) -> None:
        """Ends the server that has no session; the others end with theirs."""
        self._fleet.providers.pop(self._secret, None)
        while self._first:
            self._fleet.end(self._first.pop())

    def take(self) -> Remote:
        """Returns a server without a session. Raises WorkerError or EmulatorError."""
        if self._secret not in self._fleet.providers:
            raise WorkerError("the fleet", "this provider is stopped")
        return self._first.pop() if self._first else self._fleet.start(self._variables)

    def __enter__(self) -> SshProvider:
        self.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.stop()


class _Session:
    """One client's session. It repeats the episode on another server where the first is lost.

    A reset without a seed gets one, so that a repeated episode is the same one. Where the environment answers otherwise
    than before all the same, the session is given up: the client gets OpenEnv's error and may reset.
    """

    def __init__(self, fleet: OpenEnvFleet, provider: SshProvider) -> None:
        self._fleet = fleet
        self._provider = provider
        self._remote: Remote | None = None
        self._told: list[tuple[str, str]] = []
        """Messages since the last reset, and what was answered, by its digest: an answer may be as large as a film."""

    def answer(self, message: str) -> str | None:
        """Returns the environment's answer, or an error of OpenEnv's that says why there is none; None: the end."""
        kind, message = self._seeded(message)
        if kind == "close":
            return None
        if kind == "reset":
            self._told = []
        reasons: list[str] = []
        for _ in range(self._fleet.limits.episode_attempts):
            try:
                answer = self._ask(message)
            except _Differs as error:
                return _error(str(error))
            except (WorkerError, EmulatorError) as error:
                reasons.append(str(error).strip().splitlines()[-1])
                self.lose(error)
                continue
            if kind in ("reset", "step", "mcp"):
                self._told.append((message, _digest(answer)))
            return answer
        return _error(f"given up after {len(reasons)} servers were lost: {reasons[-1]}")

    def lose(self, error: Exception | None) -> None:
        """Ends the session's server; with ``error``, one that is lost."""
        remote, self._remote = self._remote, None
        if remote is not None:
            self._fleet.end(remote, error)

    def _seeded(self, message: str) -> tuple[str, str]:
        try:
            told = json.loads(message)
            kind = str(told["type"])
            if kind == "reset" and told.setdefault("data", {}).get("seed") is None:
                told["data"]["seed"] = next(self._fleet.seeds)
                return kind, json.dumps(told)
        except (ValueError, KeyError, TypeError, AttributeError, RecursionError):
            return "", message  # the server says what is wrong with it
        return kind, message

    def _ask(self, message: str) -> str:
        if self._remote is None:
            self._remote = self._provider.take()
            for before, answer in self._told:
                if _digest(self._said(before)) != answer:
                    raise _Differs("its server was lost, and the environment does not repeat its episode; reset it")
        return self._said(message)

    def _said(self, message: str) -> str:
        assert self._remote is not None
        self._remote.send("say", [message])
        [answer] = msgspec.msgpack.decode(self._remote.answer(self._fleet.limits.reset_s))
        return str(answer)


class _Differs(Exception):
    """A repeated episode differs from what the client has seen."""


def _digest(answer: str) -> str:
    """Of what must be the same when an episode is repeated: all but ``metadata``, which may hold times and names."""

    def without(value: Any) -> Any:
        return (
            {key: without(each) for key, each in value.items() if key != "metadata"}
            if isinstance(value, dict)
            else value
        )

    try:
        same = json.dumps(without(json.loads(answer)), sort_keys=True)
    except (ValueError, RecursionError):
        same = answer
    return digest(same.encode(errors="surrogatepass"))


def _error(message: str) -> str:
    return json.dumps({"type": "error", "data": {"message": message, "code": "SESSION_ERROR"}})


@contextmanager
def openenv_fleet(
    overrides: Sequence[str], config_name: str = "host", config_path: str = "config/multimachine"
) -> Iterator[OpenEnvFleet]:
    """Installs the package on the workers of a configuration with ``emulator=openenv``, for servers to run there.

    With ``dry_run=true``, the workers are localhost ones behind real SSH servers. Raises SettingsError or WorkerError.
    """
    settings = configuration.load(config_path, config_name, overrides)
    if not isinstance(settings.emulator, OpenEnvSettings):
        raise SettingsError(f"a fleet of OpenEnv servers has emulator=openenv, not {settings.emulator.name}")
    with machines(settings) as found:
        fleet = OpenEnvFleet(settings.emulator, found, settings.limits, settings.seed)
        try:
            yield fleet
        finally:
            fleet.close()
