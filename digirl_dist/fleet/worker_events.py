"""What the host learns of its workers: their own messages, and what happens on the way to them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from digirl_dist.errors import WorkerError
from digirl_dist.protocol.messages import (
    Acting,
    EpisodeFailed,
    EpisodeManifest,
    EpisodeReady,
    Heartbeat,
    Ready,
    SlotChanged,
    SlotSeconds,
    UnknownFile,
    Working,
)
from digirl_dist.tasks import Key
from digirl_dist.trajectory import Trajectory


@dataclass(frozen=True)
class Said:
    """The worker program said this; Working comes once for each connection."""

    worker: str
    message: (
        Ready | Working | Acting | EpisodeReady | UnknownFile | EpisodeFailed | SlotChanged | SlotSeconds | Heartbeat
    )


@dataclass(frozen=True)
class PolicyLoaded:
    """The worker acts with this policy version; what it took to push it."""

    worker: str
    version: int
    push_s: float
    push_bytes: int


@dataclass(frozen=True)
class Pulled:
    """A checked episode lies at ``path`` on the host, not yet landed."""

    worker: str
    manifest: EpisodeManifest
    trajectory: Trajectory
    path: Path
    pull_s: float


@dataclass(frozen=True)
class PullRefused:
    """An episode's file was altered, truncated, foreign or gone."""

    worker: str
    manifest: EpisodeManifest
    reason: str


@dataclass(frozen=True)
class LeasesLost:
    """The program holds these tickets no longer, and never said how they ended."""

    worker: str
    keys: Sequence[Key]


@dataclass(frozen=True)
class ClaimsRefused:
    """The program claims to hold tickets that it was never leased, or no longer; it is told to drop them."""

    worker: str
    keys: Sequence[Key]


@dataclass(frozen=True)
class Lost:
    """The worker is gone; it comes back by itself unless this is final."""

    worker: str
    error: WorkerError
    out_s: float | None = None
    """How long it is out of service, for what it did; None: it is not."""
    is_final: bool = False


@dataclass(frozen=True)
class Connecting:
    """The host is busy with getting the worker to work; it gives up after ``limit_s``.

    None: the worker waits in a queue of others, for as long as that takes.
    """

    worker: str
    doing: str
    limit_s: float | None
    is_installing: bool = False
    """Whether it is waited for however long the fleet may be without a worker that can run anything."""


@dataclass(frozen=True)
class Added:
    """The fleet has this worker as well; Working tells when it works."""

    worker: str


@dataclass(frozen=True)
class Leaving:
    """The worker is to finish what it holds and to go."""

    worker: str


@dataclass(frozen=True)
class Relayed:
    """The worker fetched ``size`` bytes of tensors from another one of its site; ``reason``: why not all of them."""

    worker: str
    source: str
    size: int
    seconds: float
    reason: str


@dataclass(frozen=True)
class DiskFull:
    """An episode of the worker waits for space on the host's disk."""

    worker: str
    reason: str


@dataclass(frozen=True)
class Throttled:
    """The worker sends more than the host reads of one worker: its messages wait."""

    worker: str
    reason: str


@dataclass(frozen=True)
class RosterRefused:
    """The workers that the configuration names now cannot be used; the fleet stays as it is."""

    reason: str


Words = Said | PolicyLoaded | Pulled | PullRefused | LeasesLost | ClaimsRefused
"""What a worker said, or sent, and what followed from it."""
WorkerEvent = Words | Lost | Connecting | Relayed | DiskFull | Throttled | Added | Leaving | RosterRefused
