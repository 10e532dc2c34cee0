"""What the workers' threads tell the collector."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from digirl_dist.errors import WorkerError
from digirl_dist.protocol.job_folder import EpisodeManifest
from digirl_dist.trajectory import Trajectory
from digirl_dist.types import Json


@dataclass(frozen=True)
class Joined:
    """The worker runs our job. ``held`` are the (iteration, index) of tickets it still has from before."""

    worker: str
    slots: int
    held: list[tuple[int, int]]
    chosen: str = ""
    """Why it has so many slots, if that was its own choice."""


@dataclass(frozen=True)
class Loaded:
    """The worker acts with this policy version now; what it took to push it."""

    worker: str
    version: int
    push_s: float
    push_bytes: int


@dataclass(frozen=True)
class Acting:
    """A slot sent the first action of an episode."""

    worker: str
    slot: int
    iteration: int


@dataclass(frozen=True)
class EpisodeReady:
    """An episode lies ready on the worker."""

    worker: str
    manifest: EpisodeManifest


@dataclass(frozen=True)
class Pulled:
    """A checked episode lies at ``path`` on the host, not yet landed."""

    worker: str
    manifest: EpisodeManifest
    trajectory: Trajectory
    path: Path
    pull_s: float


@dataclass(frozen=True)
class Refused:
    """An episode's file was altered, truncated, foreign or gone."""

    worker: str
    manifest: EpisodeManifest
    reason: str


@dataclass(frozen=True)
class UnknownFile:
    """A worker found a file among its episodes that is none of this run. It says so until it is told to forget it."""

    worker: str
    episode: str
    reason: str


@dataclass(frozen=True)
class Added:
    """From now on the fleet has this worker as well; Joined tells when it works."""

    worker: str


@dataclass(frozen=True)
class Leaving:
    """The worker is to finish what it holds and to go."""

    worker: str


@dataclass(frozen=True)
class RosterRefused:
    """The workers that the configuration names now cannot be used; the fleet stays as it is."""

    reason: str


@dataclass(frozen=True)
class EpisodeFailed:
    """An episode was lost with its emulator."""

    worker: str
    slot: int
    iteration: int
    index: int
    reason: str


@dataclass(frozen=True)
class SlotChanged:
    """A slot came into service or failed; ``in_service`` slots are left on the worker."""

    worker: str
    slot: int
    state: str
    reason: str
    in_service: int


@dataclass(frozen=True)
class Lost:
    """The worker is gone; it comes back by itself unless the error is fatal."""

    worker: str
    error: WorkerError


@dataclass(frozen=True)
class Trying:
    """The host is busy with getting the worker to work; it gives up after ``limit_s``."""

    worker: str
    doing: str
    limit_s: float


@dataclass(frozen=True)
class Alive:
    """A heartbeat: what the program's loop is doing for how long, and the waits of its slots (see rollout.SlotWait)."""

    worker: str
    doing: str
    for_s: float
    slots: list[dict[str, Json]]


@dataclass(frozen=True)
class Spent:
    """Slot-seconds of the worker by activity since it was asked before (see slot_time)."""

    worker: str
    seconds: dict[str, float]


Roster = Added | Leaving | RosterRefused
Episodes = Acting | EpisodeReady | Pulled | Refused | UnknownFile | EpisodeFailed
WorkerEvent = Joined | Loaded | Episodes | SlotChanged | Trying | Alive | Spent | Lost | Roster
