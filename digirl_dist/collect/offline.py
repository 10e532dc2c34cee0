"""Collectors that run nothing, or nothing yet."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from digirl_dist.collect.pool import Pool
from digirl_dist.collection import CollectionResult
from digirl_dist.storage.checkpoint import Checkpoint
from digirl_dist.storage.trajectory_store import Store
from digirl_dist.tasks import Ticket


class OfflineCollector:
    """Collector that runs nothing and needs no worker."""

    def begin(self, checkpoint: Checkpoint, tickets: Sequence[Ticket]) -> None:
        """Nothing begins."""

    def collect(self, checkpoint: Checkpoint, tickets: Sequence[Ticket]) -> CollectionResult:
        """Returns a result without episodes."""
        return CollectionResult.empty(tickets[0].round)

    def close(self) -> None:
        """Nothing runs."""


class StoredCollector(OfflineCollector):
    """Collector of rounds that ended before with all of their episodes, which are in the store."""

    def __init__(self, store: Store) -> None:
        self._store = store

    def collect(self, checkpoint: Checkpoint, tickets: Sequence[Ticket]) -> CollectionResult:
        """Returns the episodes that the store has."""
        wanted = tickets[0].round
        return replace(CollectionResult.empty(wanted), trajectories=list(self._store.landed(wanted).values()))


class OfflineFirst:
    """Collector that runs nothing to learn from in the first ``iterations``, and is ``pool`` from then on."""

    def __init__(self, pool: Pool, iterations: int) -> None:
        self._pool = pool
        self._iterations = iterations

    def begin(self, checkpoint: Checkpoint, tickets: Sequence[Ticket]) -> None:
        if not self._is_offline(tickets):
            self._pool.begin(checkpoint, tickets)

    def collect(self, checkpoint: Checkpoint, tickets: Sequence[Ticket]) -> CollectionResult:
        if self._is_offline(tickets):
            self._pool.attend()  # it tells of workers that are lost meanwhile, and runs what was begun
            return CollectionResult.empty(tickets[0].round)
        return self._pool.collect(checkpoint, tickets)

    def _is_offline(self, tickets: Sequence[Ticket]) -> bool:
        """Measurements are made at any time."""
        return tickets[0].purpose == "train" and tickets[0].iteration < self._iterations

    def close(self) -> None:
        self._pool.close()
