"""One worker's life on the host: connect, install, attach and stay; come back after a loss."""

from __future__ import annotations

import queue
import random
import threading
import time
import traceback
from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from digirl_dist import table
from digirl_dist.checkpoint import Checkpoint
from digirl_dist.digest import digest
from digirl_dist.emulator.slot import SlotLimits
from digirl_dist.errors import JobError, LinkLostError, RunFolderError, TrajectoryError, WorkerError
from digirl_dist.fleet.news import (
    Acting,
    Alive,
    Ended,
    EpisodeFailed,
    Joined,
    Loaded,
    Lost,
    News,
    Pulled,
    Refused,
    SlotChanged,
    Spent,
    Trying,
)
from digirl_dist.job import PROTOCOL, Notice, blob_name, decode, encode, episode_name
from digirl_dist.settings import LimitSettings, SshSettings
from digirl_dist.ssh.channel import Channel
from digirl_dist.ssh.connection import Address, Connection, connect
from digirl_dist.ssh.courier import Courier
from digirl_dist.tasks import Ticket
from digirl_dist.trajectory import Trajectory

Installer = Callable[[Connection], list[str]]
"""Makes the package usable on a worker and returns the command that runs its Python."""


@dataclass(frozen=True)
class WorkerSpec:
    """One worker as the configuration describes it."""

    address: Address
    slots: int
    folder: str
    """The job folder on the worker; may start with ``~/``."""
    install: Installer
    install_limit_s: float = 0.0
    package: str = ""
    """Digest of the package that ``install`` provides; a program that runs another one is replaced."""

    @property
    def name(self) -> str:
        return self.address.name


@dataclass(frozen=True)
class Job:
    """What a worker does, the same in every iteration. ``agent`` and ``emulator`` are packed factories."""

    run: str
    agent: bytes
    emulator: bytes
    max_steps: int | None
    limits: SlotLimits
    torch_threads: int
    orphan_s: float

    def blobs(self) -> dict[str, bytes]:
        return {digest(self.agent): self.agent, digest(self.emulator): self.emulator}

    def message(self, spec: WorkerSpec) -> bytes:
        return encode(
            "job",
            name=spec.name,
            agent=digest(self.agent),
            emulator=digest(self.emulator),
            slots=spec.slots,
            max_steps=self.max_steps,
            limits=asdict(self.limits),
            torch_threads=self.torch_threads,
        )


@dataclass(frozen=True)
class _Push:
    what: str
    digests: list[str]


@dataclass(frozen=True)
class _Pull:
    notice: Notice
    ticket: Ticket
    path: Path


class RemoteWorker:
    """Keeps one worker attached in threads of its own and tells ``post`` what happens there.

    ``publish``, ``lease``, ``pull`` and ``forget`` may be called from any thread at any time; while the worker is away
    they do nothing, and what still matters is settled when it comes back.
    """

    def __init__(
        self, spec: WorkerSpec, job: Job, ssh: SshSettings, limits: LimitSettings, post: Callable[[News], None]
    ) -> None:
        self.spec = spec
        self._job = job
        self._ssh = ssh
        self._limits = limits
        self._post = post
        self._checkpoint: Checkpoint | None = None
        self._session: _Session | None = None
        self._stopping = threading.Event()
        self._thread = threading.Thread(target=self._live, name=f"worker-{spec.name}", daemon=True)

    def start(self) -> None:
        self._thread.start()

    def publish(self, checkpoint: Checkpoint) -> None:
        """From now on act with this checkpoint; Loaded tells when it does."""
        self._checkpoint = checkpoint
        self._tell(lambda session: session.offer(checkpoint))

    def lease(self, tickets: list[Ticket]) -> None:
        self._tell(lambda session: session.send(encode("lease", tickets=[ticket.to_json() for ticket in tickets])))

    def drop(self, keys: list[tuple[int, int]]) -> None:
        """These tickets are no longer wanted of this worker."""
        self._tell(lambda session: session.send(encode("drop", keys=[list(key) for key in keys])))

    def pull(self, notice: Notice, ticket: Ticket, path: Path) -> None:
        """Bring the episode to ``path``; Pulled or Refused tells how it went."""
        self._tell(lambda session: session.transfers.put(_Pull(notice, ticket, path)))

    def forget(self, episode_id: str) -> None:
        """The episode is safe here, or of no use: the worker may delete it."""
        self._tell(lambda session: session.send(encode("landed", episodes=[episode_id])))

    def collected(self) -> None:
        """Nothing more is wanted of this iteration; Spent tells where the slots' time went."""
        self._tell(lambda session: session.send(encode("collected")))

    def ping(self) -> None:
        """So that the worker program knows that we are here."""
        self._tell(lambda session: session.send(encode("ping")))

    def stop(self) -> None:
        """Ask the program to stop its emulators and to end. Does not wait; see ``join``."""
        self._stopping.set()
        self._tell(lambda session: session.send(encode("stop")))

    def join(self, limit_s: float) -> None:
        """Wait for the end of the program, at most ``limit_s``, then close the connection whatever happens there."""
        self._thread.join(limit_s)
        session = self._session
        if session is not None:
            session.connection.close()
            self._thread.join(2.0)

    def _tell(self, action: Callable[[_Session], None]) -> None:
        session = self._session
        if session is None:
            return
        try:
            action(session)
        except WorkerError:
            session.connection.close()  # its reader thread finds out and reports the loss

    def _live(self) -> None:
        losses = 0
        silent = False
        while not self._stopping.is_set():
            attached_at = time.monotonic()
            error = self._stay(replace=silent)
            if self._stopping.is_set():
                return
            silent = isinstance(error, _ProgramSilent)
            self._post(Lost(self.spec.name, error))
            if error.fatal:
                return
            losses = 0 if time.monotonic() - attached_at > self._limits.steady_s else losses + 1
            longest = min(self._limits.back_off_max_s, self._limits.back_off_s * 2.0**losses)
            self._stopping.wait(random.uniform(longest / 2, longest))

    def _stay(self, replace: bool) -> WorkerError:
        """One connection from its beginning to its end, and why it ended."""
        try:
            with _Session(self.spec, self._job, self._ssh, self._limits, self._post, replace) as session:
                self._session = session
                session.serve(lambda: self._checkpoint)
            return LinkLostError(self.spec.name, "the worker program ended")
        except WorkerError as error:
            return error
        except Exception:  # a fault of ours must not end this thread without a word
            return JobError(self.spec.name, f"internal error: {traceback.format_exc()}", "please report it")
        finally:
            self._session = None


class _ProgramSilent(LinkLostError):
    """The connection stands but the program does not answer: it must be replaced."""


class _Session:
    """One connection to a worker: the control channel, and a thread with a courier for files."""

    def __init__(
        self,
        spec: WorkerSpec,
        job: Job,
        ssh: SshSettings,
        limits: LimitSettings,
        post: Callable[[News], None],
        replace: bool,
    ) -> None:
        self._spec = spec
        self._job = job
        self._limits = limits
        self._post = post
        self._blobs: dict[str, bytes] = job.blobs()
        self._offered: Checkpoint | None = None
        self._offered_at = 0.0
        self._pushed_bytes = 0
        self._working = False
        self._held: list[tuple[int, int]] = []
        self._spool: list[Notice] = []
        self._error: WorkerError | None = None
        self.transfers: queue.SimpleQueue[_Push | _Pull | None] = queue.SimpleQueue()
        self._try("connect and log in", ssh.connect_s + ssh.login_s)
        self.connection = connect(spec.address, ssh)
        try:
            self._try("install or check the package", spec.install_limit_s)
            python = spec.install(self.connection)
            self._try("start the worker program and its emulators", limits.silence_s)
            self._control = self._attach(python, replace)
            self._courier = Courier(
                self.connection, [*python, "-m", "digirl_dist.worker.courier", "--folder", spec.folder], ssh
            )
        except BaseException:
            self.connection.close()
            raise
        self._courier_thread = threading.Thread(target=self._carry, name=f"courier-{spec.name}", daemon=True)
        self._courier_thread.start()

    def __enter__(self) -> _Session:
        return self

    def __exit__(self, *_: object) -> None:
        self.transfers.put(None)
        self.connection.close()

    def _try(self, doing: str, limit_s: float) -> None:
        self._post(Trying(self._spec.name, doing, limit_s))

    def send(self, line: bytes) -> None:
        self._control.write(line)

    def offer(self, checkpoint: Checkpoint) -> None:
        """Ask the worker to act with this checkpoint; it answers with what it lacks, or that it is loaded."""
        if self._working:
            self._offered, self._offered_at, self._pushed_bytes = checkpoint, time.monotonic(), 0
            self.send(encode("checkpoint", version=checkpoint.iteration, tensors=checkpoint.wire()))

    def serve(self, newest: Callable[[], Checkpoint | None]) -> None:
        """Greet the program and act on what it says until it ends. Raises WorkerError when that is too early."""
        self.send(encode("hello", run=self._job.run))
        try:
            for message in self.messages():
                self.obey(message, newest())
        except JobError:
            self._dismiss()
            raise

    def _dismiss(self) -> None:
        """Nobody will come back to this program: let it stop its emulators now."""
        deadline = time.monotonic() + self._limits.stop_s
        try:
            self.send(encode("stop"))
            for _ in self.messages():
                if time.monotonic() > deadline:
                    return
        except WorkerError:
            pass  # it has ended, or cannot be told

    def messages(self) -> Iterator[dict[str, Any]]:
        """What the program says. Raises WorkerError when it falls silent or goes away."""
        while True:
            try:
                line = self._control.readline(timeout_s=self._limits.silence_s)
            except WorkerError as error:
                raise self._error or self._why_silent(error) from error
            if not line:
                raise self._error or self._why_ended()
            try:
                yield decode(line)
            except ValueError as error:
                raise JobError(
                    self._spec.name,
                    f"something else than the worker program answers: {line[:200]!r}",
                    "let the shell's start-up files print nothing when it is not interactive",
                ) from error

    def obey(self, message: dict[str, Any], checkpoint: Checkpoint | None) -> None:
        """Act on one message of the program. Anything malformed in it is the worker's failure."""
        try:
            self._obey(message, checkpoint)
        except (KeyError, TypeError, ValueError, TrajectoryError) as error:
            raise LinkLostError(self._spec.name, f"the program sent a malformed {message['type']}: {error}") from error

    def _obey(self, message: dict[str, Any], checkpoint: Checkpoint | None) -> None:
        name = self._spec.name
        match message["type"]:
            case "ready":
                self._greeted(message)
            case "need":
                self.transfers.put(_Push(message["what"], [str(entry) for entry in message["digests"]]))
            case "working":
                self._joined(checkpoint)
            case "loaded":
                self._loaded(int(message["version"]))
            case "acting":
                self._post(Acting(name, int(message["slot"]), int(message["iteration"])))
            case "episode":
                self._post(Ended(name, Notice.from_json(message["notice"])))
            case "failed":
                place = int(message["slot"]), int(message["iteration"]), int(message["index"])
                self._post(EpisodeFailed(name, *place, str(message["reason"])))
            case "slot":
                state, reason = str(message["state"]), str(message["reason"])
                self._post(SlotChanged(name, int(message["slot"]), state, reason, int(message["in_service"])))
            case "spent":
                self._post(Spent(name, {str(key): float(value) for key, value in message["seconds"].items()}))
            case "alive":
                self._check_progress(str(message["doing"]), float(message["for_s"]))
                self._post(Alive(name, str(message["doing"]), float(message["for_s"]), list(message["slots"])))
            case "broken":
                raise self._broken(str(message["during"]), str(message["reason"]))

    def _attach(self, python: list[str], replace: bool) -> Channel:
        command = [*python, "-m", "digirl_dist.worker.attach", "--folder", self._spec.folder]
        options = ["--orphan-s", str(self._job.orphan_s), "--package", self._spec.package]
        options += ["--replace"] if replace else []
        return self.connection.open([*command, *options])

    def _greeted(self, message: dict[str, Any]) -> None:
        if (message["protocol"], message["package"]) != (PROTOCOL, self._spec.package):
            raise _ProgramSilent(self._spec.name, "a program of another version serves this run; it is replaced")
        self._held = [(int(iteration), int(index)) for iteration, index in message["held"]]
        self._spool = [Notice.from_json(notice) for notice in message["spool"]]
        self.send(self._job.message(self._spec))

    def _joined(self, checkpoint: Checkpoint | None) -> None:
        if self._working:
            return
        self._working = True
        self._post(Joined(self._spec.name, self._spec.slots, self._held))
        for notice in self._spool:
            self._post(Ended(self._spec.name, notice))
        if checkpoint is not None:
            self.offer(checkpoint)

    def _loaded(self, version: int) -> None:
        if self._offered is not None and self._offered.iteration == version:
            self._post(Loaded(self._spec.name, version, time.monotonic() - self._offered_at, self._pushed_bytes))

    def _check_progress(self, doing: str, for_s: float) -> None:
        """Heartbeats come from a thread of the program; its loop must get on as well."""
        if for_s > self._limits.stuck_s:
            raise _ProgramSilent(self._spec.name, f"the worker program is stuck: {doing} since {for_s:.0f} s")

    def _broken(self, during: str, reason: str) -> WorkerError:
        if during == "attach":
            return JobError(self._spec.name, reason, "set worker_temp_path to a folder the user can write")
        remedy = "see the traceback; `parallel=single` runs the same agent and emulator on the host"
        return JobError(self._spec.name, f"it cannot carry out '{during}': {reason}", remedy)

    def _why_ended(self) -> WorkerError:
        """The relay's output ended: did the link break, or the relay, or the program behind it?"""
        ended = self._control.ended()
        if self._control.exit_status != 0:
            return ended
        said = self._control.stderr_tail()
        return LinkLostError(self._spec.name, "the worker program ended" + (f"; it printed: {said}" if said else ""))

    def _why_silent(self, error: WorkerError) -> WorkerError:
        """Is it the program that is silent, or the connection?"""
        if isinstance(error, LinkLostError) and self.connection.alive:
            return _ProgramSilent(self._spec.name, f"the worker program is silent for {self._limits.silence_s:.0f} s")
        return error

    def _carry(self) -> None:
        """The courier thread: one transfer after the other until the session ends."""
        try:
            while (transfer := self.transfers.get()) is not None:
                if isinstance(transfer, _Push):
                    self._push(transfer)
                else:
                    self._pull(transfer)
        except WorkerError as error:
            self._error = error
            self.connection.close()
        except RunFolderError as error:  # the host's disk is full: try again later, with all that is still spooled
            self._error = LinkLostError(self._spec.name, str(error), "free some space on the host")
            self.connection.close()
        except Exception:  # as in RemoteWorker._stay
            self._error = JobError(self._spec.name, f"internal error: {traceback.format_exc()}", "please report it")
            self.connection.close()

    def _push(self, push: _Push) -> None:
        wanted = set(push.digests)
        sources = [(name, memoryview(data)) for name, data in self._blobs.items() if name in wanted]
        offered = self._offered
        if push.what == "checkpoint" and offered is not None:
            sources += offered.blobs(wanted - set(self._blobs))
        self._pushed_bytes += self._courier.put_many((blob_name(name), data, name) for name, data in sources)
        if push.what == "job":
            self.send(self._job.message(self._spec))
        elif offered is not None:
            self.send(encode("checkpoint", version=offered.iteration, tensors=offered.wire()))

    def _pull(self, pull: _Pull) -> None:
        notice, started = pull.notice, time.monotonic()
        try:
            self._courier.get(episode_name(notice.episode_id), pull.path, notice.digest, notice.size)
            trajectory = _checked(pull.path, pull.ticket, self._spec.name)
        except TrajectoryError as error:
            self._post(Refused(self._spec.name, notice, str(error)))
        else:
            self._post(Pulled(self._spec.name, notice, trajectory, pull.path, time.monotonic() - started))


def _checked(path: Path, ticket: Ticket, worker: str) -> Trajectory:
    """The one episode in the file, provided that it is the one that was asked for."""
    trajectories = table.read(path)
    if len(trajectories) != 1:
        raise TrajectoryError(f"{path} holds {len(trajectories)} episodes instead of one")
    found = trajectories[0].ticket
    wanted = (*ticket.key, ticket.seed, ticket.policy_version, ticket.task.id, worker)
    if (*found.key, found.seed, found.policy_version, found.task.id, trajectories[0].worker) != wanted:
        raise TrajectoryError(f"{path} is the episode of another ticket: {found}")
    return trajectories[0]
