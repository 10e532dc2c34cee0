"""The seam between a worker's life and the way to it: over SSH, or to an actor of a Ray cluster."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Protocol, TypeVar

from digirl_dist.errors import WorkerError
from digirl_dist.fleet.outgoing import Blob
from digirl_dist.fleet.spec import Job, Spec
from digirl_dist.protocol.job_folder import EpisodeManifest


class Files(Protocol):
    """Files to and from one worker, for one thread."""

    def push(self, blobs: Sequence[Blob]) -> int:
        """Bring the blobs to the worker; returns the bytes that were sent. Raises WorkerError."""

    def fetch(self, manifest: EpisodeManifest, path: Path) -> None:
        """Bring an episode to ``path``. Raises TrajectoryError or FileRefusedError if it alone is lost."""


class Line(Protocol):
    """The way to one worker program while it stands. What ends it is raised as a WorkerError."""

    files: Files

    def write(self, line: bytes) -> None:
        """One line to the program. May wait for a slow link; see ``Outbox``."""

    def readline(self, timeout_s: float) -> bytes:
        """What the program says next; empty at its end. Raises LinkLostError when nothing came in that time."""

    def read(self, size: int, timeout_s: float) -> bytes:
        """So many bytes that the program attached to the line before; fewer at its end. Raises as ``readline``."""

    def answers(self) -> bool:
        """Whether the way itself stands, whatever the program does."""

    def why_ended(self) -> WorkerError:
        """After ``readline`` came to the end."""

    def close(self) -> None:
        """End it at once; a second call is harmless."""


Trying = Callable[[str, float], None]
"""Told what is being done to reach a worker, and its limit in seconds."""

Contact = Callable[[bool, Trying], Line]
"""Makes a line to one worker; if True, to a new program in the place of one that does not answer."""

Opening = Callable[[Trying], Line]
"""The same, once that is decided."""

AnySpec = TypeVar("AnySpec", bound=Spec)

Dial = Callable[[AnySpec, Job, bool, Trying], Line]
"""The same for workers of one kind. Raises WorkerError."""
