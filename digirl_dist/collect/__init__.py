"""Collectors: the interface for collecting one iteration's episodes, wherever they run."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

from digirl_dist.collection import CollectionResult
from digirl_dist.storage.checkpoint import Checkpoint
from digirl_dist.tasks import Ticket


class Collector(Protocol):
    """Runs tickets with a checkpoint's policy."""

    def collect(self, checkpoint: Checkpoint, tickets: Sequence[Ticket]) -> CollectionResult:
        """Returns every ticket's episode, once each.

        Raises CollectionError, naming each worker's reason, if one cannot be had.

        Episodes that an earlier, interrupted call of the same iteration brought home are not run again. If the
        iteration closes early (see ``iteration.Closing``), what was under way comes home with the next one.
        """

    def prefetch(self, checkpoint: Checkpoint, tickets: Sequence[Ticket]) -> None:
        """Lets idle slots begin with these tickets of later iterations; new episodes act with ``checkpoint``.

        Their own ``collect`` returns them. May be called while another thread collects.
        """

    def close(self) -> None:
        """Stops what runs on other machines and processes; a second call is harmless.

        A ``collect`` that goes on in another thread ends with CollectionError.
        """
