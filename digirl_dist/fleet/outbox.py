"""Lines for a worker program, written on a strand of their own, so that nobody waits for a link that is stuck."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

from digirl_dist.errors import WorkerError, failure_here
from digirl_dist.fleet.connection import WorkerConnection
from digirl_dist.strands.strand import Strand


class Outbox:
    """Sends lines in order. The first that cannot be sent ends it; ``failed`` gets the reason."""

    def __init__(self, connection: WorkerConnection, worker: str, failed: Callable[[WorkerError], None]) -> None:
        self._connection = connection
        self._worker = worker
        self._failed = failed
        self._strand = Strand(f"outbox-{worker}", self._fail)

    def send(self, line: bytes) -> None:
        """Queues a line; returns at once."""
        self._strand.do(partial(self._connection.write, line))

    def close(self) -> None:
        """Takes no more lines; those before are sent."""
        self._strand.close()

    def _fail(self, error: Exception) -> None:
        self._failed(failure_here(self._worker, "tell it what to do", error))
