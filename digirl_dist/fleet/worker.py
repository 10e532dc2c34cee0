"""One worker's life on the host: connect, install, attach and stay; come back after a loss.

A worker's life is one function in a thread of its own. What to do is decided by ``Session`` and ``Reconnecting``.
"""

from __future__ import annotations

import math
import random
import threading
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any, Protocol

from digirl_dist.errors import JobError, LinkLostError, ProtocolError, WorkerError, failure_here
from digirl_dist.fleet.connection import Connector, WorkerConnection
from digirl_dist.fleet.ledger import Ledger
from digirl_dist.fleet.outgoing import Blob, PublishedPolicy
from digirl_dist.fleet.reconnecting import Reconnecting
from digirl_dist.fleet.session import Session
from digirl_dist.fleet.spec import Job, Spec
from digirl_dist.fleet.transfers import Transfers
from digirl_dist.fleet.worker_events import Connecting, Lost, Pulled, Throttled, WorkerEvent
from digirl_dist.inference.policy_server import HostPolicy
from digirl_dist.inference.requests import InferenceReply, InferenceRequest
from digirl_dist.protocol.messages import (
    MOST_BYTES,
    Action,
    Ask,
    EpisodeManifest,
    HostMessage,
    Lease,
    Need,
    NoAction,
    decode_worker_message,
    encode,
)
from digirl_dist.settings import LimitSettings
from digirl_dist.tasks import Key, Ticket
from digirl_dist.threads import SerialQueue
from digirl_dist.types import Clock

_NEVER_THERE_S = 0.2
_UNREAD_S = 0.5
_THROTTLED_EVERY_S = 10.0
_CLOCK = getattr(time, "CLOCK_BOOTTIME", time.CLOCK_MONOTONIC)


def session_clock() -> float:
    """Returns monotonic seconds that count the sleep of this machine, through which programs elsewhere go on.

    ``time.monotonic`` does not count it on Linux.
    """
    return time.clock_gettime(_CLOCK)


def _start(name: str, life: Callable[[], None]) -> None:
    threading.Thread(target=life, name=name, daemon=True).start()


@dataclass(frozen=True)
class Runtime:
    """The clocks, waits and threads of a worker's life. The simulation has virtual ones."""

    now: Clock = session_clock
    processor_s: Clock = time.thread_time
    draw: Callable[[float, float], float] = random.uniform
    wait: Callable[[threading.Event, float], object] = threading.Event.wait
    start: Callable[[str, Callable[[], None]], None] = _start
    queue: Callable[[str, Callable[[Exception], None]], SerialQueue] = SerialQueue
    transfers: Callable[..., Transfers] = Transfers


_RUNTIME = Runtime()


class Post(Protocol):
    """Tells an event to whoever reads them."""

    def __call__(self, event: WorkerEvent, size: int = 0, ledger: Ledger | None = None) -> None:
        """It has so many bytes, which ``ledger`` counts until it is read."""


class _Attached:
    """One connection that stands: the ``Rim`` of its session, which acts in whichever thread has its lock."""

    def __init__(self, worker: RemoteWorker, connection: WorkerConnection, policy: PublishedPolicy | None) -> None:
        self._worker = worker
        self._runtime = worker.runtime
        self._connection = connection
        self._session = Session(self, worker.spec, worker.job, worker.limits, policy)
        self._lock = threading.RLock()
        self._error: WorkerError | None = None
        self._closed = threading.Event()
        self._heard_bytes = 0
        """Of the message on which the session acts."""
        name = worker.spec.name
        self._outbox = self._runtime.queue(f"outbox-{name}", self._untold)
        """Sends lines in order, so that nobody waits for a link that is stuck."""
        told, job, room = (worker.post, self.fail), worker.job, (worker.ledger, worker.limits.full_disk_s)
        self.transfers = self._runtime.transfers(connection.files, name, *told, job.guard, job.shares, *room)

    def ask(self, action: Callable[[Session], None]) -> None:
        """Has the session act, which never waits."""
        with self._lock:
            action(self._session)

    def command(self, action: Callable[[Session], None]) -> None:
        """As ``ask``, for threads that serve other workers too: a failure ends this connection alone."""
        try:
            self.ask(action)
        except Exception as error:
            self._untold(error)

    def _untold(self, error: Exception) -> None:
        self.fail(failure_here(self._worker.spec.name, "tell it what to do", error))

    def serve(self) -> None:
        """Acts on what the program says until it ends. Raises WorkerError when that is too early."""
        self.ask(lambda session: session.greet(self._runtime.now()))
        while True:
            while not self._closed.is_set() and (wait_s := self._worker.waits_s(self._runtime.now())):
                self._runtime.wait(self._closed, wait_s)
            self._hear()

    def dismiss(self, limit_s: float) -> None:
        """Stops a program to which nobody will come back, so that it ends its emulators now."""
        deadline = self._runtime.now() + limit_s
        with suppress(WorkerError):  # it has ended, or cannot be told
            self.ask(Session.stop)
            while self._runtime.now() < deadline:
                self._next_line()

    def fail(self, error: WorkerError) -> None:
        """Ends the connection, on which nothing more can be said, with the first reason."""
        self._error = self._error or error
        self.hang_up()

    def close(self) -> None:
        self.transfers.close()
        self._outbox.close()
        self.hang_up()

    def hang_up(self) -> None:
        self._closed.set()
        self._connection.close()

    def _hear(self) -> None:
        """Reads a message and has the session act on it; the worker's ledger counts what that takes, with all that the
        program printed meanwhile."""
        started = self._runtime.processor_s()
        line = self._next_line()
        try:
            message = decode_worker_message(line)
        except ProtocolError as error:
            raise self._session.malformed(line, error) from error
        attached = self._attached_to(message) if isinstance(message, Ask) and message.attached else b""
        with self._lock:
            self._heard_bytes = len(line)
            try:
                self._session.receive(message, attached, self._runtime.now())
            finally:
                self._heard_bytes = 0
        self._worker.ledger.took(len(line), self._runtime.processor_s() - started, self._runtime.now())

    def _attached_to(self, message: Ask) -> bytes:
        attached = self._connection.read(message.attached)
        if len(attached) < message.attached:
            raise self._error or self._connection.why_ended()
        return attached

    def _next_line(self) -> bytes:
        try:
            line = self._connection.readline(self._session.patience_s)
        except WorkerError as error:
            raise self._error or self._session.silent(self._connection.answers(), error) from error
        if not line or (self._session.has_heard and not line.endswith(b"\n") and len(line) <= MOST_BYTES):
            raise self._error or self._connection.why_ended()  # perhaps in the middle of a line
        return line

    def send(self, message: HostMessage) -> None:
        if isinstance(message, Lease):
            self._worker.ledger.earn(len(message.tickets))
        self._outbox.do(partial(self._connection.write, encode(message)))
        if isinstance(message, Action | NoAction):
            self._outbox.do(partial(self.ask, lambda session: session.answered(message.number)))

    def push(self, need: Need, blobs: Sequence[Blob]) -> None:
        self.transfers.push(need, blobs, lambda sent: self.ask(lambda session: session.pushed(need.what, sent)))

    def tell(self, event: WorkerEvent) -> None:
        self._worker.post(event, self._heard_bytes)

    def decide(self, request: InferenceRequest) -> None:
        """Ignored without an inference service: the request is of a former job, which ends as ours arrives."""

        def decided(reply: InferenceReply) -> None:
            self._worker.ledger.earn(1)
            self.command(lambda session: session.decided(reply))

        if self._worker.inference is not None:
            self._worker.inference.ask(request, decided)


class RemoteWorker:
    """Keeps one worker attached and tells ``post`` what happens there.

    ``publish``, ``lease``, ``pull`` and ``forget`` may be called from any thread at any time and never wait; while the
    worker is away they do nothing, and what still matters is settled when it comes back.
    """

    def __init__(
        self,
        spec: Spec,
        job: Job,
        connector: Connector[Any],
        limits: LimitSettings,
        post: Post,
        inference: HostPolicy | None = None,
        runtime: Runtime = _RUNTIME,
    ) -> None:
        self.spec = spec
        self.limits = limits
        self._post = post
        self.inference = inference
        self.runtime = runtime
        self.job = job
        self.ledger = Ledger()
        self._connector = connector
        self._coming_back = Reconnecting(limits, runtime.draw)
        self._throttled_at = -math.inf
        self._policy: PublishedPolicy | None = None
        self._attached: _Attached | None = None
        self._has_been_there = False
        self._did_not_end = False
        self._stopping = threading.Event()
        self._ended = threading.Event()

    def start(self) -> None:
        """Raises RuntimeError if a thread is refused."""
        self.runtime.start(f"worker-{self.spec.name}", self._live)

    def post(self, event: WorkerEvent, size: int = 0) -> None:
        """Tells an event, unless the worker is not wanted any more: its name may be another's by now."""
        if isinstance(event, Pulled):
            self._coming_back.brought()
        if not self._stopping.is_set():
            self._post(event, size, self.ledger)

    def waits_s(self, now: float) -> float:
        """Returns for how long no message of the worker is to be read; 0: read the next one."""
        if self._stopping.is_set():
            return 0.0
        debt_s = self.ledger.debt_s(now)
        if debt_s > 0 and now - self._throttled_at > _THROTTLED_EVERY_S:
            self._throttled_at = now
            self.post(Throttled(self.spec.name, "it sends more than this host reads of one worker; its messages wait"))
        return debt_s or (0.0 if self._has_room else _UNREAD_S)

    @property
    def _has_room(self) -> bool:
        """Whether one more event may wait to be read; of a worker that is to stop, nobody reads any."""
        return self._stopping.is_set() or self.ledger.has_room("unread")

    def publish(self, policy: PublishedPolicy) -> None:
        """Has new episodes act with this version; PolicyLoaded tells when the worker has it."""
        self._policy = policy
        self._ask(self._announce_newest)

    def lease(self, tickets: Sequence[Ticket]) -> None:
        self._ask(lambda session: session.lease(tickets))

    def drop(self, keys: Sequence[Key], lost_to: str) -> None:
        """Takes tickets back that are no longer wanted; the worker books their seconds under ``lost_to``."""
        self._ask(lambda session: session.drop(keys, lost_to))

    def forget(self, episode_id: str) -> None:
        """Lets the worker delete an episode that is safe here, or of no use."""
        self._ask(lambda session: session.forget(episode_id))

    def collected(self) -> None:
        """Tells the worker that the iteration is over; SlotSeconds answers where the slots' time went."""
        self._ask(Session.collected)

    def ping(self, now: float) -> None:
        """Tells the worker program that its host is there."""
        self._ask(lambda session: session.ping(now))

    def pull(self, manifest: EpisodeManifest, ticket: Ticket, path: Path) -> None:
        """Brings the episode to ``path``; Pulled or PullRefused tells how it went."""
        if (attached := self._attached) is not None:
            attached.transfers.pull(manifest, ticket, path)

    def stop(self) -> None:
        """Asks the program to stop its emulators and to end. Does not wait; see ``join`` and ``hang_up``."""
        self._stopping.set()
        self._ask(Session.stop)

    def join(self, limit_s: float) -> None:
        """Waits for the end of the program, at most ``limit_s``. Returns at once if no program was ever reached."""
        self._ended.wait(limit_s if self._has_been_there else min(limit_s, _NEVER_THERE_S))

    def refuse(self, error: WorkerError) -> None:
        """Ends the connection for this reason; see ``Reconnecting`` for when there is another one."""
        if (attached := self._attached) is not None:
            attached.fail(error)

    def hang_up(self) -> None:
        """Closes the connection to a program that did not end. The first time it is killed over a new one."""
        if (attached := self._attached) is not None:
            self._did_not_end = True
            attached.hang_up()

    def _announce_newest(self, session: Session) -> None:
        if self._policy is not None:
            session.announce(self._policy, self.runtime.now())

    def _ask(self, action: Callable[[Session], None]) -> None:
        if (attached := self._attached) is not None:
            attached.command(action)

    def _live(self) -> None:
        try:
            self._come_and_go()
        except Exception as defect:  # of ours: this life must not end without a word
            self.post(Lost(self.spec.name, failure_here(self.spec.name, "bring it back", defect), is_final=True))
        finally:
            self._ended.set()

    def _come_and_go(self) -> None:
        while not self._stopping.is_set():
            self._coming_back.connecting(self.runtime.now())
            pause_s = self._stay()
            if self._stopping.is_set():
                break
            if pause_s is None:
                return
            self.runtime.wait(self._stopping, pause_s)
            while not self._has_room:
                self.runtime.wait(self._stopping, _UNREAD_S)
        if self._coming_back.replace or self._did_not_end:  # a frozen program cannot end by itself when it is orphaned
            self._coming_back.replace = True
            self._stay()

    def _stay(self) -> float | None:
        """Keeps one connection from its beginning to its end; returns in how many seconds to make another, or None."""
        attached: _Attached | None = None
        try:
            connection = self._connector.connect(self.spec, self.job, self._coming_back.replace, self._progress)
            self._coming_back.attached()
            attached = _Attached(self, connection, self._policy)
            self._attached, self._has_been_there = attached, True
            self._ask(self._announce_newest)  # one may have been published while the connection was made
            if self._stopping.is_set():  # what was started must not wait for a host until it is orphaned
                attached.dismiss(self.limits.stop_s)
            else:
                attached.serve()
            error: WorkerError = LinkLostError(self.spec.name, "the worker program ended")
        except JobError as mistake:
            pause_s = self._lost(mistake)  # its tickets go to others before the program has ended
            if attached is not None:
                attached.dismiss(self.limits.stop_s)
            return pause_s
        except Exception as defect:  # of ours: it must not end this life without a word
            error = failure_here(self.spec.name, "act on what it says", defect)
        finally:
            self._attached = None
            if attached is not None:
                attached.close()
        return self._lost(error)

    def _lost(self, error: WorkerError) -> float | None:
        """Tells of the end of a connection; returns in how many seconds to make another, or None."""
        pause_s = self._coming_back.lost(error, self.runtime.now())
        if not self._stopping.is_set():
            out_s = pause_s if self._coming_back.is_out_of_service else None
            self.post(Lost(self.spec.name, error, out_s, is_final=pause_s is None))
        return pause_s

    def _progress(self, doing: str, limit_s: float | None, is_installing: bool = False) -> None:
        if limit_s is None and self._stopping.is_set():  # a wait without a limit; the others come to an end
            raise LinkLostError(self.spec.name, "the worker is not wanted any more")
        self.post(Connecting(self.spec.name, doing, limit_s, is_installing))
