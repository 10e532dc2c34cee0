"""Collection on this machine: the same slots and rollout as on a worker, with no connection between."""

from __future__ import annotations

import multiprocessing
import queue
import tempfile
import time
from collections.abc import Callable, Sequence, Set
from dataclasses import dataclass, field
from pathlib import Path

import msgspec

from digirl_dist.agent import AgentFactory
from digirl_dist.capacity import PoolSize
from digirl_dist.collect.accounts import IterationStats
from digirl_dist.collect.leases import Leases, LossKind
from digirl_dist.collect.pace import Lengths
from digirl_dist.collect.pool import Pool
from digirl_dist.emulator import EmulatorFactory
from digirl_dist.emulator.episode_guard import EpisodeGuard
from digirl_dist.errors import CollectionError, TrajectoryError
from digirl_dist.inference.local import LocalPolicies
from digirl_dist.inference.policy_server import HostPolicy
from digirl_dist.inference.requests import InferenceReply, InferenceRequest, RandomStream
from digirl_dist.protocol.messages import Acting, EpisodeFailed, SlotChanged, SlotLimits
from digirl_dist.rollout.rollout import Finished, Happening, Rollout
from digirl_dist.rollout.slot import Slot
from digirl_dist.storage import episode_file
from digirl_dist.storage.checkpoint import Checkpoint
from digirl_dist.storage.events import Events
from digirl_dist.storage.status import Status
from digirl_dist.storage.trajectory_store import Store
from digirl_dist.tasks import Key
from digirl_dist.trajectory import Trajectory
from digirl_dist.user_code.packing import pack

NAME = "local"


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
    policy: HostPolicy | None = None
    """Acts in place of the agent: a function or an endpoint of the caller, which may never answer."""


class _Asked:
    """A policy that answers in threads of its own, within its limit. Fulfils ``rollout.Policies``."""

    waiting = "policy"
    limit_s: float | None = None

    def __init__(self, policy: HostPolicy, wake: Callable[[], None]) -> None:
        self._policy = policy
        self._wake = wake
        self._answers: queue.SimpleQueue[InferenceReply] = queue.SimpleQueue()

    def __contains__(self, version: object) -> bool:
        return True  # it says itself what it no longer acts with

    def serve(self, checkpoint: Checkpoint, in_use: Set[int]) -> None:
        self._policy.serve(checkpoint, in_use)

    def expect(self, stream: RandomStream) -> None:
        """Its generator is made where it is used."""

    def ask(self, requests: Sequence[InferenceRequest]) -> None:
        for request in requests:
            self._policy.ask(request, self._answered)

    def answers(self) -> Sequence[InferenceReply]:
        return [self._answers.get() for _ in range(self._answers.qsize())]

    def _answered(self, reply: InferenceReply) -> None:
        self._answers.put(reply)
        self._wake()


class InlineCollector(Pool):
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
        leases = Leases(attempts, time.monotonic, lengths=lengths)
        super().__init__(leases, store, events, status, time.monotonic, set_aside_share)
        self._folder = tempfile.TemporaryDirectory(prefix="digirl-dist-")
        folder = Path(self._folder.name)
        packed = folder / "emulator"
        packed.write_bytes(pack(job.emulator))
        self._policies = LocalPolicies(job.agent) if job.policy is None else _Asked(job.policy, self._wake)
        slots = [Slot(k, packed, job.limits, folder / f"slot-{k}.log") for k in range(job.pool.slots)]
        self._guard = job.guard
        self._rollout = Rollout(NAME, slots, self._policies, job.max_steps, shrink=bool(job.pool.reason))
        self._version = -1
        self._woken, self._waker = multiprocessing.Pipe(duplex=False)
        if job.pool.reason:
            events.emit("bsize", worker=NAME, slots=job.pool.slots, reason=job.pool.reason)
            status.worker(NAME).bsize = f"bsize: auto chose {job.pool.slots}: {job.pool.reason}"

    def close(self) -> None:
        super().close()
        self._rollout.close()
        self._folder.cleanup()

    def _wake(self) -> None:
        if not self._woken.poll():  # else a turn is about to begin anyway
            self._waker.send_bytes(b"")

    def _work(self, timeout_s: float) -> None:
        if self._checkpoint is not None and self._checkpoint.iteration != self._version:
            self._act_with(self._checkpoint)
        room = len(self._rollout.slots) - self.leases.running(NAME)
        self._rollout.lease(self.leases.take(NAME, room, self._version) if room > 0 else [])
        self._look()
        for happening in self._rollout.turn(timeout_s, [self._woken]):
            self._account_for(happening)
        while self._woken.poll():
            self._woken.recv_bytes()
        if self._awaited and not self._rollout.in_service():
            reasons = "; ".join(f"slot {slot.index}: {slot.reason}" for slot in self._rollout.slots)
            raise CollectionError(f"no emulator can be run on this machine: {reasons}")

    def _stop(self, key: Key) -> None:
        self._rollout.drop({key}, "speculation")

    def _slots(self) -> dict[str, int]:
        return {NAME: len(self._rollout.slots)}

    def _is_accounted(self, stats: IterationStats) -> bool:
        stats.spent(NAME, self._rollout.spent())
        self._rollout.idle("update")
        return True

    def _act_with(self, checkpoint: Checkpoint) -> None:
        """New episodes use this checkpoint; running ones keep theirs."""
        self._version = checkpoint.iteration
        self._policies.serve(checkpoint, {ticket.policy_version for ticket in self._rollout.held()})
        self._rollout.idle("barrier")

    def _look(self) -> None:
        """Updates the status that ``why`` shows."""
        here = self.status.worker(NAME)
        here.doing, here.heard_at = "run episodes", time.monotonic()
        here.slots = [msgspec.structs.asdict(wait) for wait in self._rollout.waits()]

    def _account_for(self, happening: Happening) -> None:
        match happening:
            case Acting(slot, key):
                self._acts(NAME, slot, key)
            case SlotChanged(slot, state, reason):
                self.events.emit("slot", worker=NAME, slot=slot, state=state, reason=reason)
            case EpisodeFailed(slot, key, reason, by):
                self._retry(slot, key, reason, by)
            case Finished(trajectory, started_at, ended_at, _):
                try:
                    self._guard.check(trajectory, trajectory.ticket, NAME)
                    content = episode_file.encode(trajectory)
                except TrajectoryError as error:
                    self._retry(trajectory.slot, trajectory.ticket.key, str(error), "environment")
                else:
                    self._take_home(trajectory, content, ended_at - started_at)

    def _retry(self, slot: int, key: Key, reason: str, by: LossKind) -> None:
        self._stats.worker_result(NAME).retried += 1
        self.events.emit("episode_retried", worker=NAME, slot=slot, **key.place(), reason=reason)
        self._failed(NAME, key, reason, by=by)

    def _take_home(self, trajectory: Trajectory, content: bytes, seconds: float) -> None:
        ticket = trajectory.ticket
        self._ended_after(NAME, seconds)
        self.leases.lengths.ended(NAME, ticket.task.id, seconds)
        if self._land(trajectory, content, seconds):
            self.events.emit(
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
