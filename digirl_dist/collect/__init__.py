"""Collectors: the interface for collecting one iteration's episodes, wherever they run."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Protocol

from digirl_dist.collection import CollectionResult
from digirl_dist.storage.checkpoint import Checkpoint
from digirl_dist.tasks import Ticket

if TYPE_CHECKING:
    from digirl_dist.collect.stream import Stream


class Collector(Protocol):
    """Runs tickets with a checkpoint's policy."""

    def collect(self, checkpoint: Checkpoint, tickets: Sequence[Ticket]) -> CollectionResult:
        """Returns every ticket's episode, once each.

        Raises CollectionError, naming each worker's reason, if one cannot be had.

        Episodes that an earlier, interrupted call of the same iteration brought home are not run again.
        """

    def prefetch(self, checkpoint: Checkpoint, tickets: Sequence[Ticket]) -> None:
        """Lets idle slots begin with these tickets of later iterations; new episodes act with ``checkpoint``.

        Their own ``collect`` returns them. May be called while another thread collects.
        """

    def close(self) -> None:
        """Stops what runs on other machines and processes; a second call is harmless.

        A ``collect`` that goes on in another thread ends with CollectionError.
        """


class StreamingCollector(Collector, Protocol):
    """A collector that also runs single rollouts."""

    def stream(self, checkpoint: Checkpoint, stream: Stream) -> None:
        """Runs what the stream is asked for until it is closed. Raises CollectionError if nobody can."""
