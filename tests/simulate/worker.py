"""One worker's life on a simulated host: the rim of the real ``Session`` and ``Reconnecting`` on virtual time."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from random import Random
from typing import TYPE_CHECKING, Literal

from digirl_dist.errors import LinkLostError, TrajectoryError, WorkerError
from digirl_dist.fleet.outgoing import Blob, PublishedPolicy
from digirl_dist.fleet.reconnecting import Reconnecting
from digirl_dist.fleet.session import Session
from digirl_dist.fleet.spec import Job
from digirl_dist.fleet.worker_events import Lost, Pulled, PullRefused, WorkerEvent
from digirl_dist.inference.requests import InferenceRequest
from digirl_dist.protocol.messages import (
    EpisodeManifest,
    HostMessage,
    Need,
    SlotLimits,
    SlotSeconds,
    WorkerMessage,
    decode_host_message,
    decode_worker_message,
    encode,
)
from digirl_dist.tasks import Key, Ticket
from digirl_dist.trajectory import Trajectory
from simulate.link import Way, Wire
from simulate.machine import Machine
from simulate.program import RUN
from simulate.slots import SEEN, finished_step

if TYPE_CHECKING:
    from simulate.fleet import SimulatedFleet

_BEAT_S = 2.0
_LINK_SILENCE_S = 12.0
_LOOK_S = 2.0
_STALL_S = 60.0
_UNREACHED_S = 2.0


class _Attached:
    """One connection that stands, with its lines, its transfers and its watchdog."""

    def __init__(self, worker: SimulatedWorker, job: Job, policy: PublishedPolicy | None) -> None:
        self.worker = worker
        self.session = Session(self, worker.spec, job, worker.fleet.limits, policy)
        self.world, self.machine = worker.machine.world, worker.machine
        link = self.machine.link
        self.to_program = Wire(link, lambda: link.to_program, self._program_hears, self._torn)
        self.to_host = Wire(link, self._way_to_host, self._host_hears, self._torn)
        self.since = self.heard_at = self.world.now
        self._transfers: deque[tuple[int, Callable[[], object]]] = deque()
        self._counts: deque[tuple[float, float]] = deque()
        """When the accounts of slot-seconds that are on their way were made, and what episodes under way had cost."""
        self._generation = self.machine.program.generation

    def ask(self, action: Callable[[Session], None]) -> None:
        """Has the session act."""
        try:
            action(self.session)
        except WorkerError as error:
            if error.fatal:
                self.session.stop()
            self.worker.lost(self, error)

    def send(self, message: HostMessage) -> None:
        self.to_program.send(encode(message))

    def push(self, need: Need, blobs: Sequence[Blob]) -> None:
        self.carry(sum(blob.size for blob in blobs), partial(self._pushed, need.what, blobs))

    def decide(self, request: InferenceRequest) -> None:
        """Simulated workers have the policy themselves."""

    def tell(self, event: WorkerEvent) -> None:
        self.worker.post(event)

    def say(self, message: WorkerMessage) -> None:
        """What the program sends."""
        if not self.to_host.closed:
            if isinstance(message, SlotSeconds):
                slots = self.machine.program.slots
                self._counts.append((self.world.now, 0.0 if slots is None else slots.under_way_s))
            self.to_host.send(encode(message))

    def carry(self, size: int, then: Callable[[], object]) -> None:
        """Carries files in the order in which they are asked for."""
        self._transfers.append((size, then))
        if len(self._transfers) == 1:
            self._carry_next()

    def watch(self) -> None:
        """Ends the connection after too long a silence."""
        if self.to_host.closed:
            return
        answers = self.machine.link.answers
        patience_s = self.session.patience_s if answers else min(_LINK_SILENCE_S, self.session.patience_s)
        left_s = self.heard_at + patience_s - self.world.now
        if left_s > 1e-6:
            self.worker.fleet.later(min(left_s, _LOOK_S), self.watch)  # a policy that loads shortens the patience
        else:
            error = LinkLostError(self.machine.spec.name, f"nothing was heard for {patience_s:.0f} s")
            self.worker.lost(self, self.session.silent(answers, error))

    def beat(self) -> None:
        program = self.machine.program
        if not self.to_host.closed and program.generation == self._generation:
            if not program.stopped:
                program.beat()
            self.world.later(_BEAT_S, self.beat)

    def close(self) -> None:
        self.to_program.close()
        self.to_host.close()

    def program_ended(self) -> None:
        """The relay to it ends at once; the host learns it over the link."""
        self.worker.learn_end(self)

    def _way_to_host(self) -> Way:
        return Way.STALLED if self.worker.fleet.suspended else self.machine.link.to_host

    def _program_hears(self, line: bytes) -> None:
        program = self.machine.program
        if program.generation == self._generation:
            self.world.trace(self.machine.spec.name + "<", line)
            message = decode_host_message(line)
            self.machine.arrives(type(message).__name__, lambda: program.receive(message))

    def _host_hears(self, line: bytes) -> None:
        self.heard_at = self.world.now
        self.world.trace(self.machine.spec.name + ">", line)
        message = decode_worker_message(line)
        self.machine.arrives(type(message).__name__, lambda: self._act_on(message))

    def _act_on(self, message: WorkerMessage) -> None:
        if not self.to_host.closed:
            if isinstance(message, SlotSeconds):
                self.machine.accounted_to, self.machine.left_out_s = self._counts.popleft()
                self.machine.accounted_at = self.world.now
            self.ask(lambda session: session.receive(message, b"", self.world.now))

    def _torn(self) -> None:
        self.worker.lost(self, LinkLostError(self.machine.spec.name, "the connection broke"))

    def _carry_next(self) -> None:
        size, then = self._transfers[0]
        seconds = self.machine.link.delay_s() + self.worker.fleet.sending_s(size, self.machine.link.rate)
        self.world.later(seconds, lambda: self._carried(then, self.world.now))

    def _carried(self, then: Callable[[], object], since: float) -> None:
        if self.to_host.closed:
            return
        if self._way_to_host() is Way.OPEN and self.machine.link.answers:
            self._transfers.popleft()
            then()
            if self._transfers and not self.to_host.closed:
                self._carry_next()
        elif self.world.now - since > _STALL_S:
            self.worker.lost(self, LinkLostError(self.machine.spec.name, "a transfer makes no progress"))
        else:
            self.world.later(0.5, lambda: self._carried(then, since))

    def _pushed(self, what: Literal["job", "policy"], blobs: Sequence[Blob]) -> None:
        self.machine.program.blobs.update(blob.digest for blob in blobs)
        self.ask(lambda session: session.pushed(what, sum(blob.size for blob in blobs)))


class SimulatedWorker:
    """Fulfils what a collector needs of a ``RemoteWorker``."""

    def __init__(self, fleet: SimulatedFleet, machine: Machine) -> None:
        self.fleet, self.machine, self.spec = fleet, machine, machine.spec
        self.attached: _Attached | None = None
        self._job = Job(RUN, b"agent", b"emulator", 10, SLOT_LIMITS, 1, machine.program.orphan_s)
        self._coming_back = Reconnecting(fleet.limits, Random(f"{machine.spec.name}{fleet.seed}").uniform)
        self._policy: PublishedPolicy | None = None
        self._stopping = False
        self.tried_at = 0.0
        """When it was connected to last, or tried to be."""

    def post(self, event: WorkerEvent) -> None:
        if isinstance(event, Pulled):
            self._coming_back.brought()
        if not self._stopping:
            self.fleet.post(event)

    def start(self) -> None:
        self.fleet.later(0.0, self._connect)

    def publish(self, policy: PublishedPolicy) -> None:
        self._policy = policy
        self._ask(lambda session: session.announce(policy, self.fleet.world.now))

    def lease(self, tickets: Sequence[Ticket]) -> None:
        self._ask(lambda session: session.lease(tickets))

    def drop(self, keys: Sequence[Key], lost_to: str) -> None:
        self._ask(lambda session: session.drop(keys, lost_to))

    def forget(self, episode_id: str) -> None:
        self._ask(lambda session: session.forget(episode_id))

    def collected(self) -> None:
        self._ask(lambda session: session.collected())

    def ping(self, now: float) -> None:
        self._ask(lambda session: session.ping(now))

    def refuse(self, error: WorkerError) -> None:
        if self.attached is not None:
            self.lost(self.attached, error)

    def stop(self) -> None:
        self._stopping = True
        self._ask(Session.stop)

    def pull(self, manifest: EpisodeManifest, ticket: Ticket, path: Path) -> None:
        if (attached := self.attached) is not None:
            attached.carry(manifest.size, lambda: self._pulled(attached, manifest, ticket, path, self.fleet.world.now))

    def lost(self, attached: _Attached | None, error: WorkerError) -> None:
        """This connection has ended, or could not be made."""
        if attached is not self.attached:
            return
        self.attached = None
        if attached is not None:
            attached.close()
        pause_s = self._coming_back.lost(error, self.fleet.world.now)
        if not self._stopping:
            out_s = pause_s if self._coming_back.is_out_of_service else None
            self.fleet.post(Lost(self.machine.spec.name, error, out_s, is_final=pause_s is None))
            if pause_s is not None:
                self.fleet.later(pause_s, self._connect)

    def learn_end(self, attached: _Attached) -> None:
        """The program has ended; a link that is down does not say so."""
        ended = LinkLostError(self.machine.spec.name, "the worker program ended")
        if self.machine.link.to_host is Way.OPEN:
            self.fleet.later(self.machine.link.delay_s(), lambda: self.lost(attached, ended))

    def vanish(self) -> None:
        """The host process is gone."""
        self._stopping = True
        if self.attached is not None:
            self.attached.close()
            self.attached = None

    def _ask(self, action: Callable[[Session], None]) -> None:
        if self.attached is not None:
            self.attached.ask(action)

    def _connect(self) -> None:
        if self._stopping:
            return
        self.tried_at = self.fleet.world.now
        self._coming_back.connecting(self.tried_at)
        self.fleet.later(self.machine.connect_s, self._attach)

    def _attach(self) -> None:
        if self._stopping:
            return
        if not self.machine.link.answers:
            error = LinkLostError(self.machine.spec.name, "it cannot be reached")
            self.fleet.later(_UNREACHED_S, lambda: self.lost(None, error))
            return
        program = self.machine.program
        program.attach(self._coming_back.replace)
        attached = self.attached = _Attached(self, self._job, self._policy)
        program.say, program.ends = attached.say, attached.program_ended
        attached.ask(lambda session: session.greet(self.fleet.world.now))
        self.fleet.later(1.0, attached.watch)
        self.fleet.world.later(_BEAT_S, attached.beat)

    def _pulled(
        self, attached: _Attached, manifest: EpisodeManifest, ticket: Ticket, path: Path, began_at: float
    ) -> None:
        """What ``Transfers`` makes of a file that came."""
        name, program = self.machine.spec.name, self.machine.program
        _, spooled = program.ready.get(manifest.episode_id, (None, None))
        if self.fleet.disk_is_full:
            if attached is self.attached:
                self.fleet.later(0.5, lambda: self._pulled(attached, manifest, ticket, path, began_at))
        elif spooled is None or manifest.episode_id in program.damaged:
            self.post(PullRefused(name, manifest, "the file is gone or damaged"))
        else:
            episode = Trajectory(spooled, manifest.episode_id, name, manifest.slot, [finished_step], SEEN, success=True)
            try:
                self._job.guard.check(episode, ticket, name)
            except TrajectoryError as error:
                self.post(PullRefused(name, manifest, str(error)))
                return
            self.post(Pulled(name, manifest, episode, path, self.fleet.world.now - began_at))


SLOT_LIMITS = SlotLimits(boot_s=5.0, reset_s=5.0, step_s=8.0, failures=3, quarantine_s=10.0)
