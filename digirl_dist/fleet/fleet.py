"""All workers' life: starts them, keeps them informed, and gathers what they say."""

from __future__ import annotations

import threading
import time
from collections.abc import Sequence, Set
from contextlib import suppress
from typing import Generic, TypeVar

from digirl_dist.errors import CheckpointError, ClusterError, ProtocolError
from digirl_dist.fleet.connection import Connector
from digirl_dist.fleet.outgoing import Named, Outgoing, PublishedPolicy, Weights
from digirl_dist.fleet.session import PING_S
from digirl_dist.fleet.spec import Job, Spec
from digirl_dist.fleet.worker import RemoteWorker, session_clock
from digirl_dist.fleet.worker_events import Added, EventQueue, Leaving, RosterRefused, WorkerEvent
from digirl_dist.inference.policy_server import HostPolicy
from digirl_dist.protocol.messages import LoadPolicy, encode
from digirl_dist.settings import LimitSettings, PushDtype
from digirl_dist.storage.checkpoint import Checkpoint

AnySpec = TypeVar("AnySpec", bound=Spec)

_IN_ORDER = 0.7
"""The share of the wait for programs in which they may end in order."""


class Fleet(Generic[AnySpec]):
    """Workers by name. ``next_event`` is meant for one reader.

    With a ``policy``, which is closed with the fleet, that acts for all workers; else each acts with what is pushed.
    """

    def __init__(
        self,
        workers: Sequence[tuple[AnySpec, Job]],
        connector: Connector[AnySpec],
        limits: LimitSettings,
        push_dtype: PushDtype = PushDtype.float32,
        policy: HostPolicy | None = None,
    ) -> None:
        self._limits = limits
        self._push_dtype = push_dtype
        self._policy = policy
        self._announced: PublishedPolicy | None = None
        self._events = EventQueue()
        self._closing = threading.Event()
        self._connector = connector
        self._roster = threading.Lock()
        self.workers = {spec.name: self._worker(spec, job) for spec, job in workers}
        """Replaced, never changed, when a worker comes or goes: other threads may be reading it."""

    def _worker(self, spec: AnySpec, job: Job) -> RemoteWorker:
        return RemoteWorker(spec, job, self._connector, self._limits, self._events.put, self._policy)

    def start(self) -> None:
        for worker in self.workers.values():
            worker.start()
        threading.Thread(target=self._ping, name="fleet-ping", daemon=True).start()

    def publish(self, checkpoint: Checkpoint, in_use: Set[int] = frozenset()) -> None:
        """Pushes the checkpoint to all workers at once, and to each that joins later. Raises CheckpointError.

        ``in_use`` are versions of episodes under way.
        """
        published: PublishedPolicy
        if self._policy is None:
            published = self._weights(checkpoint)
        else:
            self._policy.serve(checkpoint, in_use)
            published = Named(checkpoint.iteration)
        with self._roster:
            self._announced = published
            workers = self.workers
        for worker in workers.values():
            worker.publish(published)

    def rest(self) -> None:
        """Tells the policy that acts for the workers that nothing is collected until the next ``publish``."""
        if self._policy is not None:
            self._policy.rest()

    def _weights(self, checkpoint: Checkpoint) -> Outgoing:
        before = self._announced.weights if isinstance(self._announced, Outgoing) else None
        if isinstance(self._announced, Outgoing) and self._announced.weights.checkpoint == checkpoint:
            return self._announced
        policy = Outgoing(Weights(checkpoint, self._push_dtype, before), before)
        try:
            encode(LoadPolicy(policy.iteration, policy.tensor_entries()))
        except ProtocolError as error:
            raise CheckpointError(
                f"the tensors of {checkpoint.folder} cannot be announced to workers: {error}"
            ) from error
        return policy

    def add(self, spec: AnySpec, job: Job) -> None:
        """Adds a worker while the fleet is at work."""
        if self._closing.is_set():
            return
        worker = self._worker(spec, job)
        with self._roster:
            if self._announced is not None:
                worker.publish(self._announced)
            self._events.put(Added(spec.name))
            self.workers = {**self.workers, spec.name: worker}
        try:
            worker.start()
        except RuntimeError:  # can't start new thread: it can be added again
            self.release(spec.name)
            raise

    def release(self, name: str) -> None:
        """Asks the collector to let a worker go when it has finished what it holds."""
        self._events.put(Leaving(name))

    def refuse(self, reason: str) -> None:
        """Tells the collector of a change of the workers that cannot be made."""
        self._events.put(RosterRefused(reason))

    def remove(self, name: str) -> None:
        """Stops a worker's program and forgets the worker. Does not wait."""
        with self._roster:
            worker = self.workers[name]
            self.workers = {other: each for other, each in self.workers.items() if other != name}
        threading.Thread(target=self._let_go, args=[worker], name=f"part-{name}").start()

    def _let_go(self, worker: RemoteWorker) -> None:
        _part_from([worker], self._limits.stop_s)
        if worker.spec.name not in self.workers:  # it may have come back
            with suppress(ClusterError):  # what is left ends with the run
                self._connector.forget(worker.spec.name)

    def next_event(self, timeout_s: float) -> WorkerEvent | None:
        """Returns the next event, or None if none comes in that time (see ``EventQueue.get``)."""
        return self._events.get(timeout_s)

    def wake(self) -> None:
        """Has ``next_event`` return."""
        self._events.wake()

    def close(self) -> None:
        """Stops the worker programs and their emulators, waits for them within the limit, hangs up."""
        if self._closing.is_set():
            return
        self._closing.set()
        _part_from(list(self.workers.values()), self._limits.stop_s)
        if self._policy is not None:
            self._policy.close()

    def _ping(self) -> None:
        """Visits one worker after the other, evenly in time: lines for all of them at once would take many threads."""
        while not self._closing.is_set():
            workers = list(self.workers.values())
            for worker in workers:
                worker.ping(session_clock())
                if self._closing.wait(PING_S / len(workers)):
                    break
            if not workers:
                self._closing.wait(PING_S)


def _part_from(workers: Sequence[RemoteWorker], limit_s: float) -> None:
    """Asks all to end and waits at most ``limit_s``; those that do not are killed in the last part of it."""
    for worker in workers:
        worker.stop()
    now = time.monotonic()
    for deadline in (now + _IN_ORDER * limit_s, now + limit_s):
        for worker in workers:
            worker.join(max(0.0, deadline - time.monotonic()))
        for worker in workers:
            worker.hang_up()
