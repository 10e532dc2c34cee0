"""What the worker program's state machine asks its rim of slots, policies, blobs, files and the link to do."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass
from typing import Literal

from digirl_dist.protocol.messages import Action, EpisodeManifest, LoadPolicy, NoAction, StartJob, WorkerMessage
from digirl_dist.rollout.rollout import Finished
from digirl_dist.tasks import Key, Ticket

What = Literal["job", "policy"]
"""What blobs are needed for."""


@dataclass(frozen=True)
class Send:
    """Send the message to the host."""

    message: WorkerMessage


@dataclass(frozen=True)
class FindMissing:
    """Look which of these blobs are not on this machine, then call ``found_missing``."""

    what: What
    digests: Sequence[str]


@dataclass(frozen=True)
class KeepBlobs:
    """Delete blobs that are neither these tensors nor the packed factories."""

    tensors: Collection[str]
    packed: Collection[str]


@dataclass(frozen=True)
class StartSlots:
    """Start the job's policies and slots, of which there are none, then call ``started``."""

    job: StartJob


@dataclass(frozen=True)
class CloseSlots:
    """End all emulators and forget all policies, if there are any."""


@dataclass(frozen=True)
class LeaseTickets:
    """Queue these tickets for the slots."""

    tickets: Sequence[Ticket]


@dataclass(frozen=True)
class DropTickets:
    """Forget these tickets; the seconds of running episodes are booked under ``lost_to`` (see slot_time)."""

    keys: Collection[Key]
    lost_to: str


@dataclass(frozen=True)
class IdleBecause:
    """Book slots without a ticket under this activity from now on (see slot_time)."""

    activity: str


@dataclass(frozen=True)
class CountSeconds:
    """Add up the slots' seconds since the last count, then call ``counted``."""


@dataclass(frozen=True)
class LoadTensors:
    """Load the policy from its blobs, then call ``loaded``, or ``altered`` if a blob was altered and deleted."""

    policy: LoadPolicy


@dataclass(frozen=True)
class ShareTensors:
    """Act with the tensors of version ``other`` in ``version`` too, then call ``loaded``."""

    version: int
    other: int


@dataclass(frozen=True)
class KeepVersions:
    """Retire all other policy versions."""

    versions: frozenset[int]


@dataclass(frozen=True)
class PassAnswer:
    """Give the host's answer to the episode that asked."""

    answer: Action | NoAction


@dataclass(frozen=True)
class AskAgain:
    """Repeat the questions that no host has answered."""


@dataclass(frozen=True)
class WriteEpisode:
    """Write the episode's rows and then its manifest, and call ``written``, or ``not_written`` if the disk refuses."""

    run: str
    finished: Finished


@dataclass(frozen=True)
class ListSpooled:
    """Look what lies among the episodes, delete files that are none of this run's, then call ``spooled``."""

    run: str


@dataclass(frozen=True)
class DeleteEpisodes:
    """Delete these episodes, the manifest first."""

    names: Sequence[str]


@dataclass(frozen=True)
class End:
    """End the program, and remove its folder if the host said that the run is over here."""

    stopped: bool


SlotEffect = StartSlots | CloseSlots | LeaseTickets | DropTickets | IdleBecause | CountSeconds
PolicyEffect = LoadTensors | ShareTensors | KeepVersions | PassAnswer | AskAgain
FileEffect = FindMissing | KeepBlobs | WriteEpisode | ListSpooled | DeleteEpisodes
Effect = Send | SlotEffect | PolicyEffect | FileEffect | End


@dataclass(frozen=True)
class SpooledFile:
    """An entry among the episodes: its manifest, or the reason why it has none of this run."""

    name: str
    """The name of the file; bytes that are no text stand for themselves, as half surrogate pairs."""
    manifest: EpisodeManifest | None
    reason: str = ""
