"""What the state machines of a worker's connection ask their rim of threads, links and files to do."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

from digirl_dist.errors import WorkerError
from digirl_dist.fleet.outgoing import Blob
from digirl_dist.fleet.worker_events import WorkerEvent
from digirl_dist.inference.requests import InferenceRequest
from digirl_dist.protocol.messages import HostMessage


@dataclass(frozen=True)
class Send:
    """Send the message to the program."""

    message: HostMessage


@dataclass(frozen=True)
class Push:
    """Bring the blobs to the worker, then call ``pushed`` with the number of bytes that were sent."""

    what: Literal["job", "policy"]
    blobs: Sequence[Blob]


@dataclass(frozen=True)
class Decide:
    """Have the host's policy decide; the answer goes back as an Action or a NoAction."""

    request: InferenceRequest


@dataclass(frozen=True)
class Tell:
    """Tell the collector."""

    event: WorkerEvent


@dataclass(frozen=True)
class HangUp:
    """End the connection; ``error`` is the reason."""

    error: WorkerError


Effect = Send | Push | Decide | Tell | HangUp
