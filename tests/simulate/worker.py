"""The way to a simulated machine: what the real life of a worker needs of threads, clocks and a connection."""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from random import Random
from typing import TYPE_CHECKING, Any

from digirl_dist.errors import LinkLostError, TrajectoryError, WorkerError, failure_here
from digirl_dist.fleet.connection import ConnectProgress
from digirl_dist.fleet.outgoing import Blob
from digirl_dist.fleet.spec import Job
from digirl_dist.fleet.worker import Runtime
from digirl_dist.fleet.worker_events import Pulled, PullRefused, WorkerEvent
from digirl_dist.protocol.messages import (
    EpisodeManifest,
    Need,
    SlotSeconds,
    WorkerMessage,
    decode_host_message,
    decode_worker_message,
    encode,
)
from digirl_dist.tasks import Ticket
from digirl_dist.threads import SerialQueue
from digirl_dist.trajectory import Trajectory
from simulate.link import Way, Wire
from simulate.machine import Machine, MachineSpec
from simulate.slots import SEEN, finished_step
from simulate.world import HostKilled

if TYPE_CHECKING:
    from simulate.fleet import SimulatedFleet

_BEAT_S = 2.0
_LINK_SILENCE_S = 12.0
_LOOK_S = 2.0
_STALL_S = 60.0
_UNREACHED_S = 2.0


class _AtOnce:
    """In place of shared threads: no work waits on virtual time."""

    def run(self, work: Callable[[], object]) -> None:
        work()


class Life:
    """The thread, clock and connections of one worker. Its thread runs only while the world waits for it."""

    def __init__(self, fleet: SimulatedFleet, machine: Machine) -> None:
        self.fleet, self.machine, self.world = fleet, machine, machine.world
        self.connection: SimulatedConnection | None = None
        """The one that stands."""
        self.tried_at = 0.0
        """When it was connected to last, or tried to be."""
        threads: Any = _AtOnce()
        self.runtime = Runtime(
            now=self.world.clock,
            processor_s=lambda: 0.0,
            draw=Random(f"{machine.spec.name}{fleet.seed}").uniform,
            wait=self._wait,
            start=lambda _, live: fleet.later(0.0, partial(self._begin, live)),
            queue=partial(SerialQueue, threads=threads),
            transfers=SimulatedTransfers,  # type: ignore[arg-type]
        )
        self._waits = 0
        self._is_paused = self._is_killed = False
        self._go, self._paused = threading.Semaphore(0), threading.Semaphore(0)
        self._error: BaseException | None = None

    def connect(self, spec: MachineSpec, job: Job, replace: bool, progress: ConnectProgress) -> SimulatedConnection:
        self.tried_at = self.world.now
        progress("connect and log in", self.fleet.limits.start_s)
        self.sleep(self.machine.connect_s)
        if not self.machine.link.answers:
            self.sleep(_UNREACHED_S)
            raise LinkLostError(spec.name, "it cannot be reached")
        self.machine.program.attach(replace)
        self.connection = SimulatedConnection(self)
        return self.connection

    def forget(self, worker: str) -> None:
        """Nothing is held for a worker that is away."""

    def sleep(self, seconds: float) -> None:
        """Waits so long, or until ``wake`` is called."""
        self._waits += 1
        self.fleet.later(seconds, partial(self._wake, self._waits))
        self._is_paused = True
        self._paused.release()
        self._go.acquire()
        if self._is_killed:
            raise HostKilled

    def wake(self) -> None:
        """Ends the wait that there may be."""
        self._wake(self._waits)

    def kill(self) -> None:
        """Ends it where it waits, as the host's process does."""
        self._is_killed = True
        self.wake()

    def _wait(self, event: threading.Event, seconds: float) -> None:
        if not event.is_set():
            self.sleep(seconds)

    def _begin(self, live: Callable[[], None]) -> None:
        threading.Thread(target=self._live, args=[live], daemon=True).start()
        self._run()

    def _wake(self, number: int) -> None:
        if self._is_paused and number == self._waits:
            self._is_paused = False
            self._go.release()
            self._run()

    def _run(self) -> None:
        """Lets it act until it waits, or ends. Raises what ended it."""
        self._paused.acquire()
        if self._error is not None:
            error, self._error = self._error, None
            raise error

    def _live(self, live: Callable[[], None]) -> None:
        try:
            live()
        except BaseException as error:
            self._error = None if self._is_killed else error
        self._paused.release()


class SimulatedConnection:
    """A ``WorkerConnection`` over a machine's link."""

    def __init__(self, life: Life) -> None:
        self.life, self.fleet, self.machine, self.world = life, life.fleet, life.machine, life.world
        self.files: Any = self
        link, program = self.machine.link, self.machine.program
        self.to_program = Wire(link, lambda: link.to_program, self._program_hears, self._torn)
        self.to_host = Wire(link, self.way_to_host, self._host_hears, self._torn)
        self.since = self.heard_at = self.world.now
        self._lines: deque[bytes] = deque()
        self._lost: WorkerError | None = None
        self._is_awaited = False
        self._counts: deque[tuple[float, float]] = deque()
        """When the accounts of slot-seconds that are on their way were made, and what episodes under way had cost."""
        self._generation = program.generation
        program.say, program.ends = self._say, self._program_ended
        self.world.later(_BEAT_S, self._beat)

    def write(self, line: bytes) -> None:
        self.to_program.send(line)

    def readline(self, timeout_s: float) -> bytes:
        while not self._lines:
            if self._lost is not None:
                raise self._lost
            patience_s = timeout_s if self.machine.link.answers else min(_LINK_SILENCE_S, timeout_s)
            left_s = self.heard_at + patience_s - self.world.now
            if left_s <= 1e-6:
                raise LinkLostError(self.machine.spec.name, f"nothing was heard for {patience_s:.0f} s")
            self._is_awaited = True
            self.life.sleep(min(left_s, _LOOK_S))
            self._is_awaited = False
        return self._lines.popleft()

    def read(self, size: int) -> bytes:
        """Simulated workers have the policy themselves, and attach nothing."""
        return b""

    def answers(self) -> bool:
        return self.machine.link.answers and self._lost is None

    def why_ended(self) -> WorkerError:
        return LinkLostError(self.machine.spec.name, "the worker program ended")

    def close(self) -> None:
        self._ends(LinkLostError(self.machine.spec.name, "the connection was closed"))
        self.to_program.close()
        self.to_host.close()
        if self.life.connection is self:
            self.life.connection = None
        self.fleet.later(0.0, self._resume)

    def way_to_host(self) -> Way:
        return Way.STALLED if self.fleet.suspended else self.machine.link.to_host

    def _ends(self, error: WorkerError) -> None:
        self._lost = self._lost or error

    def _resume(self) -> None:
        """Has the life of the worker look at what has come, if it waits for that."""
        if self._is_awaited:
            self.life.wake()

    def _torn(self) -> None:
        self._ends(LinkLostError(self.machine.spec.name, "the connection broke"))
        self._resume()

    def _program_ended(self) -> None:
        """The relay to it ends at once; the host learns it over the link."""
        self.to_host.send(b"")

    def _say(self, message: WorkerMessage) -> None:
        if not self.to_host.closed:
            if isinstance(message, SlotSeconds):
                slots = self.machine.program.slots
                self._counts.append((self.world.now, 0.0 if slots is None else slots.under_way_s))
            self.to_host.send(encode(message))

    def _beat(self) -> None:
        program = self.machine.program
        if not self.to_host.closed and program.generation == self._generation:
            if not program.stopped:
                program.beat()
            self.world.later(_BEAT_S, self._beat)

    def _program_hears(self, line: bytes) -> None:
        program = self.machine.program
        if program.generation == self._generation:
            self.world.trace(self.machine.spec.name + "<", line)
            message = decode_host_message(line)
            self.machine.arrives(type(message).__name__, lambda: program.receive(message))

    def _host_hears(self, line: bytes) -> None:
        self.heard_at = self.world.now
        self.world.trace(self.machine.spec.name + ">", line)
        message = decode_worker_message(line) if line else None
        self.machine.arrives(type(message).__name__, lambda: self._comes(line, message))

    def _comes(self, line: bytes, message: WorkerMessage | None) -> None:
        if not self.to_host.closed:
            if isinstance(message, SlotSeconds):
                self.machine.accounted_to, self.machine.left_out_s = self._counts.popleft()
                self.machine.accounted_at = self.world.now
            self._lines.append(line)
            self._resume()


class SimulatedTransfers:
    """Fulfils what a worker's life needs of ``Transfers``: carries files in the order in which they are asked for."""

    def __init__(
        self,
        connection: SimulatedConnection,
        worker: str,
        post: Callable[[WorkerEvent], None],
        failed: Callable[[WorkerError], None],
        guard: Any,
        *_: Any,
    ) -> None:
        self._connection, self._worker, self._post, self._failed, self._guard = connection, worker, post, failed, guard
        self._fleet, self._machine, self._world = connection.fleet, connection.machine, connection.world
        self._waiting: deque[tuple[int, Callable[[], object]]] = deque()

    def push(self, need: Need, blobs: Sequence[Blob], then: Callable[[int], None]) -> None:
        size = sum(blob.size for blob in blobs)
        self._carry(size, partial(self._pushed, blobs, partial(then, size)))

    def pull(self, manifest: EpisodeManifest, ticket: Ticket, path: Path) -> None:
        self._carry(manifest.size, lambda: self._pulled(manifest, ticket, path, self._world.now))

    def close(self) -> None:
        """What is under way ends with the connection."""

    def _carry(self, size: int, then: Callable[[], object]) -> None:
        self._waiting.append((size, then))
        if len(self._waiting) == 1:
            self._carry_next()

    def _carry_next(self) -> None:
        size, then = self._waiting[0]
        seconds = self._machine.link.delay_s() + self._fleet.sending_s(size, self._machine.link.rate)
        self._world.later(seconds, lambda: self._carried(then, self._world.now))

    def _carried(self, then: Callable[[], object], since: float) -> None:
        if self._is_over:
            return
        if self._connection.way_to_host() is Way.OPEN and self._machine.link.answers:
            self._waiting.popleft()
            try:
                then()
            except Exception as error:
                self._failed(failure_here(self._worker, "carry or check its files", error))
            if self._waiting and not self._is_over:
                self._carry_next()
        elif self._world.now - since > _STALL_S:
            self._failed(LinkLostError(self._worker, "a transfer makes no progress"))
        else:
            self._world.later(0.5, lambda: self._carried(then, since))

    @property
    def _is_over(self) -> bool:
        return self._connection.to_host.closed

    def _pushed(self, blobs: Sequence[Blob], then: Callable[[], None]) -> None:
        self._machine.program.blobs.update(blob.digest for blob in blobs)
        then()

    def _pulled(self, manifest: EpisodeManifest, ticket: Ticket, path: Path, began_at: float) -> None:
        """What ``Transfers`` makes of a file that came."""
        name, program = self._worker, self._machine.program
        _, spooled = program.ready.get(manifest.episode_id, (None, None))
        if self._fleet.disk_is_full:
            if not self._is_over:
                self._fleet.later(0.5, lambda: self._pulled(manifest, ticket, path, began_at))
        elif spooled is None or manifest.episode_id in program.damaged:
            self._post(PullRefused(name, manifest, "the file is gone or damaged"))
        else:
            episode = Trajectory(spooled, manifest.episode_id, name, manifest.slot, [finished_step], SEEN, success=True)
            try:
                self._guard.check(episode, ticket, name)
            except TrajectoryError as error:
                self._post(PullRefused(name, manifest, str(error)))
                return
            self._post(Pulled(name, manifest, episode, path, self._world.now - began_at))
