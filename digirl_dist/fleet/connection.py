"""The seam between a worker's life and the way to it: over SSH, or to an actor of a Ray cluster."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Protocol, TypeVar

from digirl_dist.errors import DigirlDistError, WorkerError
from digirl_dist.fleet.outgoing import Blob
from digirl_dist.fleet.spec import Job, Spec
from digirl_dist.fleet.worker_events import WorkerEvent
from digirl_dist.protocol.messages import EpisodeManifest, Need


class Files(Protocol):
    """Files to and from one worker, for one thread."""

    def push(self, need: Need, blobs: Sequence[Blob], tell: Callable[[WorkerEvent], None]) -> int:
        """Brings the blobs that are needed to the worker; returns the bytes that were sent. Raises WorkerError.

        ``tell`` learns how workers helped.
        """

    def fetch(self, episodes: Mapping[Path, EpisodeManifest]) -> Iterator[tuple[Path, DigirlDistError | None]]:
        """Brings episodes to their paths; yields each path as soon as it is done, with the error of one lost alone."""


class WorkerConnection(Protocol):
    """The way to one worker program while it stands. What ends it is raised as a WorkerError."""

    files: Files

    def write(self, line: bytes) -> None:
        """Sends one line to the program. May wait for a slow link."""

    def readline(self, timeout_s: float) -> bytes:
        """Returns what the program says next; empty at its end, a part of a line that is longer than ``MOST_BYTES``.

        Raises LinkLostError when no whole line came in that time, or another thread has closed the connection.
        """

    def read(self, size: int) -> bytes:
        """Returns so many bytes that the program attached to its line; fewer at its end.

        Raises LinkLostError when they come too slowly for any transfer.
        """

    def answers(self) -> bool:
        """Returns whether the way itself stands, whatever the program does."""

    def why_ended(self) -> WorkerError:
        """Returns the reason after ``readline`` came to the end."""

    def close(self) -> None:
        """Ends it at once; a second call is harmless."""


class ConnectProgress(Protocol):
    """Called at each step on the way to a worker."""

    def __call__(self, doing: str, limit_s: float | None, is_installing: bool = False) -> None:
        """``limit_s``: in seconds; None: the worker waits in a queue of others.

        Raises LinkLostError if the worker is not wanted any more.
        """


AnySpec = TypeVar("AnySpec", bound=Spec, contravariant=True)


class Connector(Protocol[AnySpec]):
    """Reaches the worker programs of one kind of machine."""

    def connect(self, spec: AnySpec, job: Job, replace: bool, progress: ConnectProgress) -> WorkerConnection:
        """Connects to the worker's program, which it starts if need be; ``replace`` first ends one that is silent.

        Raises WorkerError.
        """

    def forget(self, worker: str) -> None:
        """Gives back what is held for a worker that left the fleet. Raises ClusterError."""
