"""Spreads requests over time."""

from __future__ import annotations

import threading
import time


class Pace:
    """Admits at most ``per_minute`` callers per minute, evenly (0: no limit). Safe to use from any thread."""

    def __init__(self, per_minute: float, stopping: threading.Event) -> None:
        self._gap_s = 60.0 / per_minute if per_minute > 0 else 0.0
        self._stopping = stopping
        self._next_at = 0.0
        self._lock = threading.Lock()

    def wait(self) -> None:
        """Blocks until it is the caller's turn or ``stopping`` is set."""
        with self._lock:
            now = time.monotonic()
            turn = max(now, self._next_at)
            self._next_at = turn + self._gap_s
        if turn > now:
            self._stopping.wait(turn - now)
