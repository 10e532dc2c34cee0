"""Collectors: the interface for collecting one iteration's episodes, wherever they run."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

from digirl_dist.collection import CollectionResult
from digirl_dist.storage.checkpoint import Checkpoint
from digirl_dist.tasks import Ticket


class Collector(Protocol):
    """Runs tickets with a checkpoint's policy."""

    def begin(self, checkpoint: Checkpoint, tickets: Sequence[Ticket]) -> object:
        """Has a round run after those that were begun before, as slots are free; new episodes act with ``checkpoint``.

        ``collect`` returns it. A second call only brings the checkpoint.
        """

    def collect(self, checkpoint: Checkpoint, tickets: Sequence[Ticket]) -> CollectionResult:
        """Returns every ticket's episode, once each, of a round that has begun, or begins now.

        Raises CollectionError, naming each worker's reason, if one cannot be had.

        Episodes that an earlier, interrupted call of the same round brought home are not run again.
        """

    def close(self) -> None:
        """Stops what runs on other machines and processes; a second call is harmless.

        A ``collect`` that goes on in another thread ends with CollectionError.
        """
