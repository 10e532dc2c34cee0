"""Collection on this machine: the same slots and rollout as on a worker, with no connection between."""

from __future__ import annotations

import queue
import tempfile
import threading
import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path

import msgspec

from digirl_dist.agent import AgentFactory
from digirl_dist.capacity import PoolSize
from digirl_dist.collect.accounts import IterationStats
from digirl_dist.collect.iteration import Iteration, later_of
from digirl_dist.collect.leases import Leases, LossKind
from digirl_dist.collect.pace import Lengths
from digirl_dist.collect.stream import Stream
from digirl_dist.collection import CollectionResult
from digirl_dist.emulator import EmulatorFactory
from digirl_dist.emulator.episode_guard import EpisodeGuard
from digirl_dist.errors import CollectionError, TrajectoryError
from digirl_dist.inference.local import LocalPolicies
from digirl_dist.protocol.messages import Acting, EpisodeFailed, SlotChanged, SlotLimits
from digirl_dist.rollout.rollout import Finished, Happening, Rollout
from digirl_dist.rollout.slot import Slot
from digirl_dist.storage import episode_file
from digirl_dist.storage.checkpoint import Checkpoint
from digirl_dist.storage.events import Events
from digirl_dist.storage.status import Status
from digirl_dist.storage.trajectory_store import Store
from digirl_dist.tasks import Key, Round, Ticket
from digirl_dist.trajectory import Trajectory
from digirl_dist.user_code.packing import pack

NAME = "local"
_TURN_S = 0.5
_CLOSE_S = 5.0


@dataclass(frozen=True)
class InlineJob:
    """What is run: the agent and the emulator, in how many slots (with a reason if they were chosen), with limits."""

    agent: AgentFactory
    emulator: EmulatorFactory
    pool: PoolSize
    limits: SlotLimits
    max_steps: int | None
    guard: EpisodeGuard = field(default_factory=EpisodeGuard)
    """Checks what the emulators and the agent bring."""
    newest: bool = False
    """Whether the newest policy version acts in all episodes."""


class InlineCollector:
    """Runs every ticket in emulator processes of this machine."""

    def __init__(
        self,
        job: InlineJob,
        attempts: int,
        set_aside_share: float,
        store: Store,
        events: Events,
        status: Status,
        lengths: Lengths | None = None,
    ) -> None:
        self._folder = tempfile.TemporaryDirectory(prefix="digirl-dist-")
        folder = Path(self._folder.name)
        packed = folder / "emulator"
        packed.write_bytes(pack(job.emulator))
        self._policies = LocalPolicies(job.agent, newest=job.newest)
        slots = [Slot(k, packed, job.limits, folder / f"slot-{k}.log") for k in range(job.pool.slots)]
        self._guard = job.guard
        self._rollout = Rollout(NAME, slots, self._policies, job.max_steps, shrink=bool(job.pool.reason))
        self._leases = Leases(attempts, time.monotonic, lengths=lengths)
        self._all_stats: dict[Round, IterationStats] = {}
        self._version = -1
        self._set_aside_share = set_aside_share
        self._store = store
        self._events = events
        self._status = status
        self._prefetches: queue.SimpleQueue[tuple[Checkpoint, Sequence[Ticket]]] = queue.SimpleQueue()
        self._closed = threading.Event()
        self._busy = threading.Lock()
        if job.pool.reason:
            events.emit("bsize", worker=NAME, slots=job.pool.slots, reason=job.pool.reason)
            status.worker(NAME).bsize = f"bsize: auto chose {job.pool.slots}: {job.pool.reason}"

    def collect(self, checkpoint: Checkpoint, tickets: Sequence[Ticket]) -> CollectionResult:
        iteration = Iteration(tickets, self._leases, self._store, self._set_aside_share)
        for reason in iteration.left_aside:
            self._events.emit("episode_left_aside", reason=reason)
        with self._busy, iteration:
            self._run(checkpoint, iteration)
            return iteration.close(self._all_stats.pop(iteration.round))

    def stream(self, checkpoint: Checkpoint, stream: Stream) -> None:
        """Runs what the stream is asked for until it is closed."""
        with self._busy:
            stream.begin(self._leases, lambda: None)
            self._run(checkpoint, stream)

    def prefetch(self, checkpoint: Checkpoint, tickets: Sequence[Ticket]) -> None:
        self._prefetches.put((checkpoint, tickets))

    def _run(self, checkpoint: Checkpoint, iteration: Iteration | Stream) -> None:
        stats = self._stats_of(iteration.round)
        stats.started_at = time.monotonic()
        stats.has_slots(NAME, len(self._rollout.slots))
        self._look(iteration)
        if not iteration.is_over:
            self._act_with(checkpoint)
        while not iteration.is_over:
            if self._closed.is_set():
                raise CollectionError(f"iteration {iteration.number}: the collection was ended before it was complete")
            self._take_offers(iteration)
            iteration.turn()
            self._hand_out()
            self._look(iteration)
            for happening in self._rollout.turn(_TURN_S):
                self._account_for(happening, iteration)
            iteration.made_durable()
            if not self._rollout.in_service():
                reasons = "; ".join(f"slot {slot.index}: {slot.reason}" for slot in self._rollout.slots)
                raise CollectionError(f"no emulator can be run on this machine: {reasons}")
        stats.spent(NAME, self._rollout.spent())
        self._rollout.idle("update")
        self._status.collected(iteration.round)

    def _act_with(self, checkpoint: Checkpoint) -> None:
        """New episodes use this checkpoint; running ones keep theirs."""
        self._version = checkpoint.iteration
        if self._version not in self._policies:
            self._policies.load(self._version, checkpoint.state())
        self._policies.retire({self._version, *(ticket.policy_version for ticket in self._rollout.held())})
        self._rollout.idle("barrier")

    def _take_offers(self, iteration: Iteration | Stream) -> None:
        offered = []
        while not self._prefetches.empty():  # this is its only reader
            checkpoint, tickets = self._prefetches.get()
            iteration.begin_later(tickets)
            offered.append(checkpoint)
        newest = max(offered, key=lambda one: one.iteration, default=None)
        if newest is not None and newest.iteration > self._version:
            self._act_with(newest)

    def _hand_out(self) -> None:
        room = len(self._rollout.slots) - self._leases.running(NAME)
        self._rollout.lease(self._leases.take(NAME, room, self._version) if room > 0 else [])

    def _stats_of(self, wanted: Round) -> IterationStats:
        return self._all_stats.setdefault(wanted, IterationStats(wanted, time.monotonic))

    def _look(self, iteration: Iteration | Stream) -> None:
        """Updates the status that ``why`` shows."""
        here = self._status.worker(NAME)
        here.doing, here.heard_at = "run episodes", time.monotonic()
        here.slots = [msgspec.structs.asdict(wait) for wait in self._rollout.waits()]
        self._status.collecting(iteration.round, iteration.landed, iteration.wanted)

    def close(self) -> None:
        self._closed.set()
        if self._busy.acquire(timeout=_CLOSE_S):  # slots belong to one thread; a stuck one must not stop us
            self._busy.release()
        self._rollout.close()
        self._folder.cleanup()

    def _account_for(self, happening: Happening, iteration: Iteration | Stream) -> None:
        stats = self._stats_of(iteration.round)
        match happening:
            case Acting(slot, key):
                self._stats_of(later_of(iteration.round, key)).acting(NAME, slot)
            case SlotChanged(slot, state, reason):
                self._events.emit("slot", worker=NAME, slot=slot, state=state, reason=reason)
            case EpisodeFailed(slot, key, reason, by):
                self._retry(slot, key, reason, stats, by)
            case Finished(trajectory, started_at, ended_at, _):
                try:
                    self._guard.check(trajectory, trajectory.ticket, NAME)
                    content = episode_file.encode(trajectory)
                except TrajectoryError as error:
                    self._retry(trajectory.slot, trajectory.ticket.key, str(error), stats)
                else:
                    self._land(trajectory, content, iteration, ended_at - started_at)

    def _retry(self, slot: int, key: Key, reason: str, stats: IterationStats, by: LossKind = "environment") -> None:
        stats.worker_result(NAME).retried += 1
        self._events.emit("episode_retried", worker=NAME, slot=slot, **key.place(), reason=reason)
        if self._leases.fail(NAME, key, reason, kind=by):
            self._events.emit("ticket_set_aside", **self._leases.why_set_aside(key))
        if fault := self._leases.faults.news():
            self._events.emit("equal_faults", reason=fault)

    def _land(self, trajectory: Trajectory, content: bytes, iteration: Iteration | Stream, seconds: float) -> None:
        ticket = trajectory.ticket
        self._stats_of(iteration.round).ended(NAME, seconds, 0.0)
        self._leases.lengths.ended(NAME, ticket.task.id, seconds)
        if iteration.land(trajectory, content):
            stats = self._stats_of(ticket.key.round)
            stats.seconds[ticket.key] = seconds
            self._events.emit(
                "episode",
                worker=NAME,
                **ticket.key.place(),
                success=trajectory.success,
                reward=trajectory.reward,
                attempt=ticket.attempt,
                policy_version=ticket.policy_version,
                task=ticket.task.id,
                seconds=round(seconds, 3),
            )
