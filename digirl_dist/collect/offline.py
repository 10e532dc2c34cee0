"""Collection that does not happen: updates learn from what was collected elsewhere."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from digirl_dist.collect import Collector
from digirl_dist.collection import CollectionResult
from digirl_dist.storage.checkpoint import Checkpoint
from digirl_dist.storage.trajectory_store import Store
from digirl_dist.tasks import Ticket


class OfflineCollector:
    """Collector that runs nothing and needs no worker."""

    def collect(self, checkpoint: Checkpoint, tickets: Sequence[Ticket]) -> CollectionResult:
        """Returns a result without episodes."""
        return CollectionResult.empty(tickets[0].round)

    def prefetch(self, checkpoint: Checkpoint, tickets: Sequence[Ticket]) -> None:
        """Nothing begins."""

    def close(self) -> None:
        """Nothing runs."""


class StoredCollector(OfflineCollector):
    """Collector of rounds that ended before: their episodes are in the store."""

    def __init__(self, store: Store) -> None:
        self._store = store

    def collect(self, checkpoint: Checkpoint, tickets: Sequence[Ticket]) -> CollectionResult:
        """Returns the episodes that the store has."""
        wanted = tickets[0].round
        return replace(CollectionResult.empty(wanted), trajectories=list(self._store.landed(wanted).values()))


class OfflineFirst:
    """Collector that runs nothing to learn from in the first ``iterations``, and is ``collector`` from then on."""

    def __init__(self, collector: Collector, iterations: int) -> None:
        self._collector = collector
        self._iterations = iterations

    def collect(self, checkpoint: Checkpoint, tickets: Sequence[Ticket]) -> CollectionResult:
        if self._is_offline(tickets):
            return CollectionResult.empty(tickets[0].round)
        return self._collector.collect(checkpoint, tickets)

    def prefetch(self, checkpoint: Checkpoint, tickets: Sequence[Ticket]) -> None:
        if not self._is_offline(tickets):
            self._collector.prefetch(checkpoint, tickets)

    def _is_offline(self, tickets: Sequence[Ticket]) -> bool:
        """Measurements are made at any time."""
        return tickets[0].purpose == "train" and tickets[0].iteration < self._iterations

    def close(self) -> None:
        self._collector.close()
