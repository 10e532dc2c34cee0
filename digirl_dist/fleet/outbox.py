"""Lines for a worker program, written in a thread of its own, so that nobody waits for a link that is stuck."""

from __future__ import annotations

import queue
import threading
from collections.abc import Callable

from digirl_dist.errors import WorkerError
from digirl_dist.fleet.connection import WorkerConnection


class Outbox:
    """Sends lines in order. The first that cannot be sent ends it; ``failed`` gets the reason."""

    def __init__(self, connection: WorkerConnection, worker: str, failed: Callable[[WorkerError], None]) -> None:
        self._connection = connection
        self._failed = failed
        self._lines: queue.SimpleQueue[bytes | None] = queue.SimpleQueue()
        threading.Thread(target=self._write, name=f"outbox-{worker}", daemon=True).start()

    def send(self, line: bytes) -> None:
        """Queues a line; returns at once."""
        self._lines.put(line)

    def close(self) -> None:
        """Ends once the lines before have been sent."""
        self._lines.put(None)

    def _write(self) -> None:
        try:
            while (line := self._lines.get()) is not None:
                self._connection.write(line)
        except WorkerError as error:
            self._failed(error)
