"""Every message that host and worker program exchange on the control channel, with the range of each field.

A message is one line of JSON, whose ``type`` says which of these classes it is; an ``Ask`` is followed by as many bytes
as its ``attached`` says. ``encode`` writes a message, ``decode_host_message`` and ``decode_worker_message`` read one:
whatever is not exactly a message of that side ends in ``ProtocolError``, at the sender already: the limits of the types
below are those of both ends. This file makes docs/reference/protocol.md.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Annotated, Literal

import msgspec
from msgspec import Meta

from digirl_dist.capacity import Needs
from digirl_dist.errors import ProtocolError
from digirl_dist.tasks import Key, Ticket
from digirl_dist.types import Json, Natural, T, TokenIds, TokenLogProbs

PROTOCOL = 5
"""Raised when a message changes its meaning."""

SPOKEN = (PROTOCOL,)
"""The protocols that this version of the package speaks."""

MOST_BYTES = 1 << 20
"""The longest line that a host accepts, its end included."""

MOST_HOST_BYTES = 1 << 26
"""The longest line that a worker program accepts: a policy may have very many tensors."""

MOST_REASON = 1 << 15
"""Characters of a reason; a longer one loses its beginning, as tracebacks say at their end what happened."""

MOST_SLOTS = 4096
"""No machine carries more; a worker that claims it must not be leased a whole iteration."""

MOST_HELD = 2 * MOST_SLOTS
"""Tickets that one worker may hold; a heartbeat that names as many slots as well fits into a line."""

MOST_DIGESTS = 5000
"""Blobs that one Need names; the worker asks for the rest once these have come."""

RunId = Annotated[str, Meta(pattern=r"^[A-Za-z0-9._-]{1,64}\Z")]
Digest = Annotated[str, Meta(pattern=r"^[0-9a-f]{1,128}\Z")]
EpisodeId = Annotated[str, Meta(pattern=r"^[A-Za-z0-9._-]{1,160}\Z")]
MOST_NAME = 256
Name = Annotated[str, Meta(max_length=MOST_NAME)]
Word = Annotated[str, Meta(max_length=64)]
Reason = Annotated[str, Meta(max_length=MOST_REASON)]
Text = Annotated[str, Meta(max_length=1 << 17)]
Keys = Annotated[list[Key], Meta(max_length=MOST_HELD)]
Seconds = Annotated[float, Meta(ge=0, le=1e9)]
SlotNumber = Annotated[int, Meta(ge=0, lt=MOST_SLOTS)]
SlotCount = Annotated[int, Meta(ge=0, le=MOST_SLOTS)]
SlotState = Literal["ready", "long", "down", "closed"]
"""``long``: its episode has many steps and no end yet."""
Attached = Annotated[int, Meta(ge=0, le=32 << 20)]
"""Bytes behind the line: no screenshot has more."""
Spent = Annotated[dict[Word, Seconds], Meta(max_length=16)]
"""Seconds by phase or activity."""


class SlotLimits(msgspec.Struct, frozen=True):
    """How long an emulator may take, in seconds, and how often it may fail in a row before its slot is closed."""

    boot_s: Seconds = 180.0
    reset_s: Seconds = 60.0
    step_s: Seconds = 30.0
    failures: Natural = 3
    quarantine_s: Seconds = 300.0
    back_off_s: Seconds = 0.5
    back_off_max_s: Seconds = 30.0


class TensorEntry(msgspec.Struct, frozen=True, array_like=True):
    """One tensor of a policy: the digest, dtype and shape of what is sent."""

    digest: Digest
    dtype: Name
    shape: Annotated[list[Natural], Meta(max_length=64)]
    own_dtype: Name | None = None
    """The dtype that the policy has itself, if the tensor was cast for the wire."""


class SlotWait(msgspec.Struct, frozen=True, array_like=True):
    """What a slot is doing, for how long, how long it may take, and for which ticket."""

    activity: Word
    for_s: Seconds
    limit_s: Seconds | None
    ticket: Natural | None


class EpisodeManifest(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """An episode that is ready in a worker's folder. Clocks of different machines are never compared."""

    run: RunId
    key: Key
    attempt: Natural
    policy_version: Natural
    episode_id: EpisodeId
    size: Natural
    """Size of its file in bytes."""
    digest: Digest
    slot: SlotNumber
    seconds: Seconds
    """Duration of the episode."""
    age_s: Seconds
    """Time from its end to the writing of this manifest."""
    spent: Spent
    """Its seconds by phase."""


def _snake(name: str) -> str:
    return "".join("_" + letter.lower() if letter.isupper() else letter for letter in name).lstrip("_")


class _Message(msgspec.Struct, frozen=True, tag_field="type", tag=_snake):
    """Unknown fields are ignored, so that an older program understands the greeting of a newer host."""


class Hello(_Message, frozen=True):
    """Greets a program with the run's id and the protocols that the host speaks."""

    run: RunId
    protocols: Annotated[list[Natural], Meta(max_length=64)] = []
    host: Name = ""
    """Tells the host's process from others of the same run; one that another took over from is refused from then on."""


class StartJob(_Message, frozen=True):
    """Describes the worker's job; a job that is already running stays as it is."""

    name: Name
    agent: Digest | None
    """The packed factory of the agent; without one the worker asks the host for each action."""
    emulator: Digest
    limits: SlotLimits
    slots: SlotCount | None = None
    """null: the worker chooses by its cores and memory."""
    needs: Needs = Needs()
    """What one emulator needs, for a worker that chooses its slots."""
    sharers: Natural = 1
    """Workers that share this machine."""
    max_steps: Natural | None = None
    torch_threads: Natural = 1
    answer_s: Seconds = 600.0
    """Longest wait of the worker for an action from the host."""

    @property
    def packed(self) -> list[str]:
        """Digests of the packed factories."""
        return [digest for digest in (self.agent, self.emulator) if digest is not None]


class LoadPolicy(_Message, frozen=True):
    """Announces a policy version by its tensors; Need or Loaded answers it."""

    version: Natural
    tensors: Annotated[dict[Name, TensorEntry], Meta(max_length=200_000)]


class Pushed(_Message, frozen=True):
    """Everything needed has been pushed: the job starts, or the announced policy is loaded."""

    what: Literal["job", "policy"]


class Lease(_Message, frozen=True):
    """Leases tickets. ``order`` counts the leases and drops of this connection."""

    order: Natural
    tickets: Annotated[list[Ticket], Meta(max_length=MOST_HELD)]


class Drop(_Message, frozen=True):
    """Drops tickets that are no longer wanted; their seconds are booked under ``lost_to`` (see slot_time)."""

    order: Natural
    keys: Keys
    lost_to: Name


class Landed(_Message, frozen=True):
    """Lets the worker delete episodes that are durable on the host, or of no use."""

    episodes: Annotated[list[EpisodeId], Meta(max_length=1000)]


class Collected(_Message, frozen=True):
    """Ends the collection of this iteration; SlotSeconds answers it."""


class Action(_Message, frozen=True):
    """Answers an Ask with an action."""

    number: Natural
    action: Json
    log_prob: float | None
    """null if the agent does not know it."""
    token_log_probs: TokenLogProbs = b""
    """That of each of the action's tokens, as little-endian float32."""
    tokens: TokenIds = b""
    """Those of a chat endpoint's answer."""
    prompt_tokens: TokenIds = b""
    policy_version: Natural | None = None
    """The version that acted, if that is not the episode's."""


class NoAction(_Message, frozen=True):
    """Answers an Ask that gets no action; its episode is lost."""

    number: Natural
    reason: Reason


class Ping(_Message, frozen=True):
    """Tells the program that its host is alive."""


class Stop(_Message, frozen=True):
    """Ends the program and its emulators."""


class MachineFacts(msgspec.Struct, frozen=True):
    """What a worker machine is made of."""

    cpu: Name
    cores: Natural
    memory_bytes: Natural
    system: Name
    python: Name
    packages: Annotated[dict[Word, Word], Meta(max_length=200)] = {}
    """Versions of what the package depends on."""


class Ready(_Message, frozen=True):
    """Answers Hello with the protocol to speak, and describes the program."""

    protocol: Natural
    package: Name
    """Digest of the installed package; empty: the host's own."""
    python: Name
    pid: Natural
    machine: MachineFacts | None = None


class Need(_Message, frozen=True):
    """Names the blobs that the worker lacks for the job or the announced policy, and what it has towards them."""

    what: Literal["job", "policy"]
    digests: Annotated[list[Digest], Meta(max_length=MOST_DIGESTS)]
    rests: Annotated[dict[Digest, Natural], Meta(max_length=MOST_DIGESTS)] = {}
    """Bytes that an interrupted transfer left of some of them."""
    bases: Annotated[list[Digest], Meta(max_length=MOST_DIGESTS)] = []
    """Tensors of the policy before that are there: a delta against them will do."""


class Working(_Message, frozen=True):
    """The job runs. Episodes that are ready from before follow as EpisodeReady, before the program reads the first
    order."""

    slots: Annotated[int, Meta(ge=1, le=MOST_SLOTS)]
    reason: Reason
    """Reason for the number of slots, if the worker chose it."""
    held: Keys
    """Tickets that are queued or running from before."""


class Loaded(_Message, frozen=True):
    """New episodes use this policy version."""

    version: Natural


class Ask(_Message, frozen=True):
    """Requests an action. The image, as it was encoded, the vector, as float32, and earlier images are attached in this
    order."""

    number: Natural
    """Number of the request among those of this worker."""
    version: Natural
    stream: tuple[Natural, Natural, Natural]
    """The ticket's seed, its index and the step, which determine the randomness of the decision."""
    text: Text
    image: Attached | None
    vector: Attached | None
    attached: Attached = 0
    earlier: Annotated[list[Attached], Meta(max_length=8)] = []


class Acting(_Message, frozen=True):
    """A slot performed the first action of an episode."""

    slot: SlotNumber
    key: Key


class EpisodeReady(_Message, frozen=True):
    """An episode is ready on the worker: of a leased ticket, or from before (see Working)."""

    manifest: EpisodeManifest


class UnknownFile(_Message, frozen=True):
    """A file among the episodes does not belong to this run. The worker deletes it, unless it is a folder."""

    episode: Name
    """The name of the file, as far as it can be shown."""
    reason: Reason


class EpisodeFailed(_Message, frozen=True):
    """An episode was lost with its emulator; its ticket must run again."""

    slot: SlotNumber
    key: Key
    reason: Reason
    by: Literal["environment", "agent"] = "environment"
    """Which of the two failed."""


class SlotChanged(_Message, frozen=True):
    """A slot came into service or failed, or its episode is very long."""

    slot: SlotNumber
    state: SlotState
    reason: Reason
    in_service: SlotCount
    """Slots that remain in service on the worker."""


class SlotSeconds(_Message, frozen=True):
    """The worker's slot-seconds by activity since the previous report (see slot_time)."""

    seconds: Spent


class Heartbeat(_Message, frozen=True):
    """Reports every two seconds what the program is doing and which tickets it holds; the host compares."""

    doing: Name
    for_s: Seconds
    unheard_s: Seconds
    """Time since the program last heard from the host."""
    slots: Annotated[list[SlotWait], Meta(max_length=MOST_SLOTS)]
    held: Keys
    """Tickets that are queued or running."""
    order: Natural
    """The newest order that ``held`` takes into account."""
    in_service: SlotCount


class Broken(_Message, frozen=True):
    """The program cannot carry out an order; ``during`` names it. What was ``foreseen`` says what to do."""

    during: Name
    reason: Reason
    foreseen: bool = False


HostMessage = (
    Hello
    | StartJob
    | LoadPolicy
    | Pushed
    | Lease
    | Drop
    | Landed
    | Collected
    | Action
    | NoAction
    | Ping
    | Stop
)  # fmt: skip
"""What a host says."""

WorkerMessage = (
    Ready
    | Need
    | Working
    | Loaded
    | Ask
    | Acting
    | EpisodeReady
    | UnknownFile
    | EpisodeFailed
    | SlotChanged
    | SlotSeconds
    | Heartbeat
    | Broken
)
"""What a worker program says."""

Told = Ready | Working | Acting | EpisodeReady | UnknownFile | EpisodeFailed | SlotChanged | SlotSeconds | Heartbeat
"""What the collector hears of it: the session acts on the rest itself."""

_ENCODER = msgspec.json.Encoder()
_HOST: msgspec.json.Decoder[HostMessage] = msgspec.json.Decoder(HostMessage)
_WORKER: msgspec.json.Decoder[WorkerMessage] = msgspec.json.Decoder(WorkerMessage)
_MANIFEST = msgspec.json.Decoder(EpisodeManifest)


def encode(message: HostMessage | WorkerMessage, attached: bytes = b"") -> bytes:
    """Returns the line of a message, followed by what is attached.

    Raises ProtocolError for a message that the other side would refuse.
    """
    try:
        line = _ENCODER.encode(message) + b"\n"
    except (TypeError, ValueError, RecursionError) as error:  # such as half a surrogate pair, or a number of NumPy
        raise ProtocolError(f"a {type(message).__name__} cannot be sent: {error}") from error
    if isinstance(message, HostMessage):
        decode_host_message(line)
    else:
        decode_worker_message(line)
    return line + attached


def decode_host_message(line: bytes) -> HostMessage:
    """Raises ProtocolError for anything but a message of a host."""
    return _decoded(_HOST, line, MOST_HOST_BYTES)


def decode_worker_message(line: bytes) -> WorkerMessage:
    """Raises ProtocolError for anything but a message of a worker program."""
    return _decoded(_WORKER, line, MOST_BYTES)


def _decoded(decoder: msgspec.json.Decoder[T], line: bytes, most_bytes: int) -> T:
    if len(line) > most_bytes:
        raise ProtocolError(f"a line of {len(line)} bytes; at most {most_bytes} are allowed")
    return decoded(decoder, line)


def encode_manifest(manifest: EpisodeManifest) -> bytes:
    return _ENCODER.encode(manifest)


def decode_manifest(content: bytes) -> EpisodeManifest:
    """Raises ProtocolError for anything but a manifest."""
    return decoded(_MANIFEST, content)


def common_protocol(theirs: Sequence[int]) -> int | None:
    """Returns the newest protocol that both sides speak."""
    return max(set(SPOKEN) & set(theirs), default=None)


def shortened(reason: str, most: int = MOST_REASON) -> str:
    """Returns the reason as it fits into a message: the end of a longer one, and bytes that are no text escaped."""
    text = reason[-most:].encode(errors="backslashreplace").decode()
    return text if len(text) <= most and len(reason) <= most else "…" + text[1 - most :]


def decoded(decoder: msgspec.json.Decoder[T], content: bytes) -> T:
    """Raises ProtocolError for anything but what the decoder takes."""
    try:
        return decoder.decode(content)
    except (msgspec.MsgspecError, ValueError, RecursionError) as error:
        raise ProtocolError(f"{error}: {content[:200]!r}") from error
