"""A pool whose episodes a test brings home by hand."""

from __future__ import annotations

from concurrent.futures import Future
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np

from digirl_dist.collect.accounts import IterationStats
from digirl_dist.collect.leases import Leases
from digirl_dist.collect.pool import Pool
from digirl_dist.collection import CollectionResult
from digirl_dist.storage.events import Events
from digirl_dist.storage.status import Status
from digirl_dist.storage.trajectory_store import Store
from digirl_dist.tasks import Key, Ticket
from digirl_dist.trajectory import Observation, Step, Trajectory

SEEN = Observation("", None, np.zeros(1, np.float32))


class HandPool(Pool):
    """Takes its turns when the test says so."""

    def __init__(self, folder: Path, leases: Leases | None = None, set_aside_share: float = 0.1) -> None:
        self.told: list[tuple[str, dict[str, Any]]] = []
        events = Events(folder / "events.jsonl", (lambda kind, content: self.told.append((kind, content)),))
        store, parts = Store(folder / "trajectories"), (Status(), lambda: 0.0, set_aside_share)
        super().__init__(leases or Leases(3, lambda: 0.0), store, events, *parts)

    def asked(self, tickets: list[Ticket], version: int = 0) -> Future[CollectionResult]:
        """Has a round begin."""
        checkpoint: Any = SimpleNamespace(iteration=version)
        future = self.begin(checkpoint, tickets)
        self.turn()
        return future

    def land(self, ticket: Ticket) -> bool:
        step = Step(SEEN, 0, -1.0, 1.0, terminated=True, truncated=False)
        episode = Trajectory(ticket, f"{ticket.key.name}-{ticket.attempt}", "w", 0, [step], SEEN, success=True)
        return self._land(episode, b"", 1.0)

    def fail(self, worker: str, key: Key, reason: str, others: list[str]) -> bool:
        return self._failed(worker, key, reason, others)

    def end(self, error: Exception) -> None:
        """Has all that is open break off."""
        self._end(error)

    def land_all(self, count: int = 10**6) -> list[str]:
        """Has so many episodes land; returns their ids."""
        self.turn()
        tickets = self.leases.take("w", count, version=3)
        for ticket in tickets:
            assert self.land(ticket)
        self.turn()
        self.turn()
        return [f"{ticket.key.name}-{ticket.attempt}" for ticket in tickets]

    def _work(self, timeout_s: float) -> None:
        """What the test does."""

    def _wake(self) -> None:
        """Turns are taken by hand."""

    def _stop(self, key: Key) -> None:
        """Nobody runs anything."""

    def _slots(self) -> dict[str, int]:
        return {}

    def _is_accounted(self, stats: IterationStats) -> bool:
        return True
