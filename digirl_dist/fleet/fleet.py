"""All workers' life: starts them, keeps them informed, and gathers what they say."""

from __future__ import annotations

import queue
import threading
import time
from collections.abc import Sequence

from digirl_dist.checkpoint import Checkpoint
from digirl_dist.fleet.news import News
from digirl_dist.fleet.spec import Job, WorkerSpec
from digirl_dist.fleet.worker import RemoteWorker
from digirl_dist.settings import LimitSettings, SshSettings

_PING_S = 3.0


class Fleet:
    """Workers by name. ``news`` is meant for one reader."""

    def __init__(self, workers: Sequence[tuple[WorkerSpec, Job]], ssh: SshSettings, limits: LimitSettings) -> None:
        self._limits = limits
        self._news: queue.SimpleQueue[News] = queue.SimpleQueue()
        self._closing = threading.Event()
        self.workers = {spec.name: RemoteWorker(spec, job, ssh, limits, self._news.put) for spec, job in workers}

    def start(self) -> None:
        for worker in self.workers.values():
            worker.start()
        threading.Thread(target=self._ping, name="fleet-ping", daemon=True).start()

    def publish(self, checkpoint: Checkpoint) -> None:
        """Push the checkpoint to all workers at once, and to each that joins later."""
        for worker in self.workers.values():
            worker.publish(checkpoint)

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
