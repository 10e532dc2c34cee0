"""Programs on the workers of a configuration that host environments for this process, over SSH."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import msgspec

from digirl_dist.errors import EmulatorError, SettingsError, WorkerError
from digirl_dist.fleet.install import ensure_installed, this_package
from digirl_dist.fleet.roster import WorkerConfig, localhost_worker_configs, this_python, worker_configs
from digirl_dist.protocol.messages import shortened
from digirl_dist.settings import Settings
from digirl_dist.slurm.jobs import SlurmAddress
from digirl_dist.ssh.channel import Channel
from digirl_dist.ssh.connect import connect
from digirl_dist.ssh.connection import Connection
from digirl_dist.types import T
from digirl_dist.worker_program.environments import MOST_BYTES, PING, PING_S, write_frame


class _Reply(msgspec.Struct):
    results: msgspec.Raw = msgspec.Raw(b"")
    error: str | None = None


_REPLIES = msgspec.msgpack.Decoder(_Reply)
_FRAME_S = 60.0
"""A frame that has begun comes within this time."""


@dataclass(eq=False)
class Remote:
    """A program on a worker, and the numbers of the environments that it has, in the order in which it knows them."""

    name: str
    channel: Channel
    envs: list[int] = field(default_factory=list)
    _writing: threading.Lock = field(default_factory=threading.Lock)
    _closed: threading.Event = field(default_factory=threading.Event)
    _unread: int = 0
    """Answers that are still to come."""

    def __post_init__(self) -> None:
        threading.Thread(target=self._ping, name=f"ping-{self.name}", daemon=True).start()

    def send(self, request: str, asked: Any) -> None:
        self._unread += 1
        self.write({"do": request, "with": asked})

    def write(self, content: Mapping[str, Any]) -> None:
        """Sends a frame. Raises WorkerError."""
        with self._writing:
            self.channel.write(write_frame(content))

    def _ping(self) -> None:
        """Shows the program that its host is there, while nothing is asked of it."""
        with suppress(WorkerError):
            while not self._closed.wait(PING_S):
                with self._writing:
                    self.channel.write(PING)

    def frame(self, limit_s: float, kind: msgspec.msgpack.Decoder[T], most: int = MOST_BYTES) -> T:
        """Returns the next frame. Raises WorkerError if the worker is lost, or sends anything else, or more bytes."""
        deadline = time.monotonic() + limit_s
        head = self.channel.read_exactly(4, limit_s)
        size = int.from_bytes(head, "big")
        if len(head) < 4 or size > most:
            raise self.channel.ended() if len(head) < 4 else WorkerError(self.name, "it sends no frames of ours")
        data = self.channel.read_exactly(size, max(1.0, min(_FRAME_S, deadline - time.monotonic())))
        try:
            return kind.decode(data)
        except (msgspec.DecodeError, ValueError, RecursionError) as error:
            raise WorkerError(self.name, f"it sends no frames of ours: {error}") from error

    def answer(self, limit_s: float) -> bytes:
        """Returns the results as MessagePack. Raises WorkerError if the worker is lost, EmulatorError for a failure."""
        reply = self.frame(limit_s, _REPLIES)
        self._unread -= 1
        if self._unread > 0:  # whoever waited for this one was interrupted
            return self.answer(limit_s)
        if reply.error is not None:
            raise EmulatorError(f"an environment of worker {self.name} raised: {shortened(reply.error)}")
        if not bytes(reply.results):
            raise WorkerError(self.name, "it sends no frames of ours: an empty answer")
        return bytes(reply.results)

    def close(self) -> None:
        """Closes the program's streams, at which it ends."""
        self._closed.set()
        self.channel.close()


@dataclass(frozen=True, eq=False)
class Machine:
    """A worker with the package installed."""

    name: str
    connection: Connection
    python: tuple[str, ...]

    def start(self, hosted: bytes, program: str = "environments") -> Remote:
        """Starts a program of ``worker_program`` with what the packed callable makes. Raises WorkerError."""
        channel = self.connection.open([*self.python, "-m", f"digirl_dist.worker_program.{program}"])
        channel.write(write_frame({"hosted": hosted}))
        return Remote(self.name, channel)


@contextmanager
def machines(settings: Settings) -> Iterator[list[Machine]]:
    """Connects to the workers, installs the package there, and cuts the connections at the end.

    With ``dry_run=true``, the workers are localhost ones behind real SSH servers. Raises SettingsError or WorkerError.
    """
    with ExitStack() as stack:
        folder = Path(stack.enter_context(TemporaryDirectory(prefix="digirl-dist-fleet-")))
        found = localhost_worker_configs(settings, folder, stack) if settings.dry_run else worker_configs(settings)
        if any(isinstance(each.address, SlurmAddress) for each in found):
            raise SettingsError("worker_ips: environments for other libraries are on machines over SSH, not on slurm")
        with ThreadPoolExecutor(len(found)) as pool:
            reached = list(pool.map(partial(_reached, settings, stack), found))
        yield reached


def _reached(settings: Settings, stack: ExitStack, worker_config: WorkerConfig) -> Machine:
    connection = connect(worker_config.address, settings.ssh)
    stack.callback(connection.close)
    python = this_python(None)
    if not settings.dry_run:
        extras = [*getattr(settings.emulator, "extras", ())]
        extras += ["atari"] if "ALE/" in str(getattr(settings.emulator, "id", "")) else []
        package = this_package(settings.install, extras).with_emulator(settings.emulator)
        python = [ensure_installed(connection, package, worker_config.run_path, worker_config.python)]
    return Machine(worker_config.name, connection, tuple(python))
