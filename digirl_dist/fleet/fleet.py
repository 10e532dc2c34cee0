"""All workers' life: starts them, keeps them informed, and gathers what they say."""

from __future__ import annotations

import queue
import threading
import time
from collections.abc import Sequence
from functools import partial
from typing import Generic

from digirl_dist.checkpoint import Checkpoint
from digirl_dist.fleet.line import AnySpec, Dial
from digirl_dist.fleet.news import Added, Leaving, News, RosterRefused
from digirl_dist.fleet.outgoing import Outgoing, Weights
from digirl_dist.fleet.spec import Job
from digirl_dist.fleet.worker import RemoteWorker
from digirl_dist.settings import LimitSettings, PushDtype

_PING_S = 3.0


class Fleet(Generic[AnySpec]):
    """Workers by name. ``news`` is meant for one reader."""

    def __init__(
        self,
        workers: Sequence[tuple[AnySpec, Job]],
        dial: Dial[AnySpec],
        limits: LimitSettings,
        push_dtype: PushDtype = PushDtype.float32,
    ) -> None:
        self._limits = limits
        self._push_dtype = push_dtype
        self._outgoing: Outgoing | None = None
        self._news: queue.SimpleQueue[News] = queue.SimpleQueue()
        self._closing = threading.Event()
        self._dial = dial
        self._roster = threading.Lock()
        self.workers = {spec.name: self._worker(spec, job) for spec, job in workers}
        """Replaced, never changed, when a worker comes or goes: other threads may be reading it."""

    def _worker(self, spec: AnySpec, job: Job) -> RemoteWorker:
        return RemoteWorker(spec, job, partial(self._dial, spec, job), self._limits, self._news.put)

    def start(self) -> None:
        for worker in self.workers.values():
            worker.start()
        threading.Thread(target=self._ping, name="fleet-ping", daemon=True).start()

    def publish(self, checkpoint: Checkpoint) -> None:
        """Push the checkpoint to all workers at once, and to each that joins later. Raises CheckpointError."""
        before = None if self._outgoing is None else self._outgoing.weights
        outgoing = self._outgoing
        if before is None or before.checkpoint != checkpoint:
            outgoing = Outgoing(Weights(checkpoint, self._push_dtype, before), before)
        assert outgoing is not None
        with self._roster:
            self._outgoing = outgoing
            workers = self.workers
        for worker in workers.values():
            worker.publish(outgoing)

    def add(self, spec: AnySpec, job: Job) -> None:
        """A further worker joins while the fleet is at work."""
        if self._closing.is_set():
            return
        worker = self._worker(spec, job)
        self._news.put(Added(spec.name))
        with self._roster:
            self.workers = {**self.workers, spec.name: worker}
            if self._outgoing is not None:
                worker.publish(self._outgoing)
        worker.start()

    def release(self, name: str) -> None:
        """Ask for a worker to be let go when it has finished what it holds; Leaving tells the collector."""
        self._news.put(Leaving(name))

    def refuse(self, reason: str) -> None:
        """A change of the workers that cannot be made; RosterRefused tells the collector."""
        self._news.put(RosterRefused(reason))

    def remove(self, name: str) -> None:
        """Stop a worker's program and forget the worker. Does not wait."""
        with self._roster:
            worker = self.workers[name]
            self.workers = {other: each for other, each in self.workers.items() if other != name}
        worker.stop()
        threading.Thread(target=worker.join, args=[self._limits.stop_s], name=f"part-{name}").start()

    def news(self, timeout_s: float) -> News | None:
        """What happened next, or None if nothing did in that time."""
        try:
            return self._news.get(timeout=timeout_s)
        except queue.Empty:
            return None

    def close(self) -> None:
        """Stop the worker programs and their emulators, wait for them within the limit, hang up."""
        if self._closing.is_set():
            return
        self._closing.set()
        for worker in self.workers.values():
            worker.stop()
        deadline = time.monotonic() + self._limits.stop_s
        for worker in self.workers.values():
            worker.join(max(0.1, deadline - time.monotonic()))

    def _ping(self) -> None:
        while not self._closing.wait(_PING_S):
            for worker in self.workers.values():
                worker.ping()
