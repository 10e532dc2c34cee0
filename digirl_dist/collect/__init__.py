"""The seam for collection: one iteration's episodes, wherever they are run."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

from digirl_dist.checkpoint import Checkpoint
from digirl_dist.harvest import Harvest
from digirl_dist.tasks import Ticket


class Collector(Protocol):
    """Runs tickets with a checkpoint's policy."""

    def collect(self, checkpoint: Checkpoint, tickets: Sequence[Ticket]) -> Harvest:
        """Every ticket's episode, once each. Raises HarvestError, naming each worker's reason, if that cannot be had.

        Episodes that an earlier, interrupted call of the same iteration brought home are not run again.
        """

    def close(self) -> None:
        """Stop what runs on other machines and processes; a second call is harmless."""
