"""What is said when the workers of a site pass tensors on. Each message is one line of JSON.

The host sends an ``Offer`` to the worker that has the tensors, and a ``Fetch`` to the one that lacks them. That one
logs in to the first with that worker's key, and gets each tensor from a courier there, as soon as that has it.
"""

from __future__ import annotations

from typing import Annotated, Literal

import msgspec
from msgspec import Meta

from digirl_dist.errors import ProtocolError
from digirl_dist.protocol.messages import MOST_BYTES, Digest, Name, Reason, decoded
from digirl_dist.types import Natural, T

MOST_OF_REQUESTS = 1 << 24
"""The longest line that names tensors."""

Sha256 = Annotated[str, Meta(pattern=r"^[0-9a-f]{64}\Z")]
PublicKey = Annotated[str, Meta(pattern=r"^ssh-ed25519 [A-Za-z0-9+/]{68}\Z")]
HostKeyKind = Literal["ed25519", "ecdsa", "rsa"]
Fingerprint = Annotated[str, Meta(pattern=r"^SHA256:[A-Za-z0-9+/]{43}\Z")]


class Answer(msgspec.Struct, frozen=True):
    """What a courier says before a file, or of one: its size in bytes, or the reason of a refusal."""

    error: Reason | None = None
    size: Natural = 0


class Offer(msgspec.Struct, frozen=True):
    """Asks a worker to let the owner of this key fetch tensors by digest until stdin ends."""

    public_key: PublicKey


class Offered(msgspec.Struct, frozen=True):
    """Answers an Offer; ``error`` says why the key cannot be admitted."""

    error: Reason = ""


class Tensor(msgspec.Struct, frozen=True):
    """A tensor by its name on workers."""

    digest: Digest
    size: Natural
    sha256: Sha256


class Fetch(msgspec.Struct, frozen=True):
    """Asks a worker to fetch tensors from another one. It comes over stdin, because it contains the key."""

    host: Name
    port: Annotated[int, Meta(ge=1, le=65_535)]
    user: Name
    host_key: Fingerprint
    """The host key that this run's host saw there."""
    kind: HostKeyKind
    private_key: Annotated[str, Meta(max_length=4096)]
    tensors: list[Tensor]


class Fetched(msgspec.Struct, frozen=True):
    """Reports the progress of a Fetch, twice a second."""

    digests: list[Digest] = []
    """Tensors received since the previous line."""
    size: Natural = 0
    """Bytes received in total."""
    error: Reason = ""
    """Reason why no more will come."""


def encode(message: msgspec.Struct) -> bytes:
    return msgspec.json.encode(message) + b"\n"


def decode(line: bytes, kind: type[T], most_bytes: int = MOST_BYTES) -> T:
    """Raises ProtocolError for anything but a message of that kind."""
    if len(line) > most_bytes or not line.endswith(b"\n"):
        raise ProtocolError(f"a line of {len(line)} bytes without an end: {line[:200]!r}")
    return decoded(msgspec.json.Decoder(kind), line)
