"""One episode in one file: as a worker sends it, and as it lies in the run folder until its iteration ends.

A digest of all that follows, then MessagePack: the images as they are, each once however often it was seen, and the
rest in a part that zlib has packed. Reading one takes a quarter of the processor time of Parquet with its 25 columns,
and memory in proportion to its size (see ``episode_limits.most_memory``): ``encode`` refuses what ``read`` would.
"""

from __future__ import annotations

import json
import sys
import zlib
from array import array
from collections.abc import Iterable, Sequence
from functools import cache
from pathlib import Path
from typing import Annotated, Any

import msgspec
import numpy as np
import xxhash
from msgspec import Meta

from digirl_dist.emulator.episode_limits import LONGEST_TEXT, most_memory
from digirl_dist.errors import TrajectoryError
from digirl_dist.settings import regular_file
from digirl_dist.storage import atomic_files
from digirl_dist.tasks import Purpose, Task, Ticket
from digirl_dist.trajectory import Goal, Observation, Step, Trajectory, float32
from digirl_dist.types import Json, Natural, TokenIds, TokenLogProbs

SUFFIX = ".episode"
_DIGEST_BYTES = 16
_FASTEST = 1
_BEYOND = 32 << 20
"""Bytes of texts, and of images, that are there again and again: each step has its own copy in Parquet."""
_VALUE_BYTES = 64
"""Of a value in an action or a goal, an object counted as three: an empty list takes three bytes of JSON."""
_STEP_BYTES = 600
"""Of a step and its observation in memory, without what they contain."""
_MOST_STEPS = 1 << 20
_LONGEST_REASON = 500


_Text = Annotated[bytes, Meta(max_length=4 * LONGEST_TEXT)]
"""UTF-8: its size in memory is known only when it is decoded."""


class _Seen(msgspec.Struct, array_like=True, frozen=True, gc=False):
    text: Natural
    """Its place among the texts of the file."""
    vector: bytes | None
    image: Natural | None
    """Its place among the images of the file."""


class _Done(msgspec.Struct, array_like=True, frozen=True, gc=False):
    action: str
    log_prob: float
    reward: float
    terminated: bool
    truncated: bool
    achieved: str
    token_log_probs: TokenLogProbs = b""
    tokens: TokenIds = b""
    prompt_tokens: TokenIds = b""
    policy_version: Natural | None = None


class Origin(msgspec.Struct, array_like=True, frozen=True):
    """What an episode's file says once, and Parquet in each row of the episode. A new field needs a default."""

    iteration: Natural
    ticket: Natural
    purpose: Purpose
    task: str
    instruction: str
    seed: int
    policy_version: Natural
    episode_id: str
    worker: str
    slot: Natural
    success: bool
    params: str = "{}"

    @classmethod
    def of(cls, episode: Trajectory) -> Origin:
        ticket, task = episode.ticket, episode.ticket.task
        return cls(
            ticket.iteration,
            ticket.index,
            ticket.purpose,
            task.id,
            task.instruction,
            ticket.seed,
            ticket.policy_version,
            episode.episode_id,
            episode.worker,
            episode.slot,
            bool(episode.success),
            json.dumps(task.params),
        )

    def trajectory(self, steps: Sequence[Step], final: Observation) -> Trajectory:
        """Raises TrajectoryError, or ValueError, for params that are no JSON object."""
        task = Task(self.task, self.instruction, params_of(self.params))
        ticket = Ticket(self.iteration, self.ticket, task, self.seed, self.policy_version, purpose=self.purpose)
        return Trajectory(ticket, self.episode_id, self.worker, self.slot, steps, final, self.success)


class _File(msgspec.Struct, array_like=True, frozen=True):
    rows: bytes
    images: list[bytes]


_encode = msgspec.msgpack.Encoder().encode
_FILES = msgspec.msgpack.Decoder(_File)


@cache
def _decoder(most_steps: int) -> msgspec.msgpack.Decoder[Any]:
    """Returns the decoder of the packed part, which looks at the lengths of lists before it makes them."""
    rows = msgspec.defstruct(
        "_Rows",
        [
            ("origin", Origin),
            ("steps", Annotated[list[_Done], Meta(min_length=1, max_length=most_steps)]),
            ("seen", Annotated[list[_Seen], Meta(max_length=most_steps + 1)]),
            ("texts", Annotated[list[_Text], Meta(max_length=most_steps + 1)]),
        ],
        array_like=True,
    )
    return msgspec.msgpack.Decoder(rows)


def write(path: Path, episode: Trajectory, flushed: bool = True) -> None:
    """Writes a file beside ``path`` and renames it (see ``atomic_files``), so ``path`` is never half-written."""
    atomic_files.write_bytes(path, encode(episode), flushed)


def encode(episode: Trajectory) -> bytes:
    """Returns the content of the file. Rewards and log-probabilities become float32, as Parquet has them.

    Raises TrajectoryError for an episode that ``read`` would refuse.
    """
    seen = episode.observations
    screens, images = _places(one.image for one in seen if one.image is not None)
    screen = iter(screens)
    try:
        lines, texts = _places(one.text.encode() for one in seen)
        shown = [
            _Seen(line, _vector(one), None if one.image is None else next(screen))
            for one, line in zip(seen, lines, strict=True)
        ]
        origin, done = Origin.of(episode), [_done(step) for step in episode.steps]
        rows = _encode([origin, done, shown, texts])
    except (UnicodeEncodeError, TypeError, ValueError, RecursionError) as error:
        raise TrajectoryError(f"something in it cannot be stored: {error}") from error
    content = _encode([zlib.compress(rows, _FASTEST), images])
    size = _DIGEST_BYTES + len(content)
    _refuse_size("it unpacks", len(rows), size)
    _decoded_texts(texts, _said(done, origin.params), size)
    return xxhash.xxh3_128_digest(content) + content


def read(path: Path, most_steps: int = _MOST_STEPS) -> Trajectory:
    """Returns the episode of a file that another machine wrote. Raises TrajectoryError for anything else."""
    return read_counted(path, most_steps)[0]


def read_counted(path: Path, most_steps: int = _MOST_STEPS) -> tuple[Trajectory, int]:
    """As ``read``; returns also about how many bytes the episode takes in memory."""
    try:
        with regular_file.opened(path) as file:
            return _decoded(file.read(), most_steps)
    except (OSError, zlib.error, msgspec.MsgspecError, ValueError, RecursionError, TrajectoryError) as error:
        raise TrajectoryError(f"{path} is not a trajectory file: {str(error)[:_LONGEST_REASON]}") from error


def _decoded(data: bytes, most_steps: int) -> tuple[Trajectory, int]:
    content = memoryview(data)[_DIGEST_BYTES:]
    if xxhash.xxh3_128_digest(content) != data[:_DIGEST_BYTES]:
        raise TrajectoryError("it was altered or cut off")
    file, size = _FILES.decode(content), len(data)
    del data, content  # the images are copies
    rows = _decoder(most_steps).decode(_unpacked(file.rows, most_memory(size)))
    counts = len(rows.steps), len(rows.seen), len(rows.texts), len(file.images)
    if len(rows.seen) != len(rows.steps) + 1:
        raise TrajectoryError("{} steps, {} observations, {} texts and {} images do not fit".format(*counts))
    _refuse_copies("images", file.images, [one.image for one in rows.seen if one.image is not None])
    _refuse_copies("texts", rows.texts, [one.text for one in rows.seen])
    said = _said(rows.steps, rows.origin.params)
    texts = _decoded_texts(rows.texts, said, size)
    *seen, final = (_observation(one, texts, file.images) for one in rows.seen)
    steps = [_step(one, done) for one, done in zip(seen, rows.steps, strict=True)]
    memory = said + sum(map(sys.getsizeof, texts)) + sum(map(len, file.images)) + _STEP_BYTES * len(steps)
    memory += sum(len(one.vector) for one in rows.seen if one.vector is not None)
    return rows.origin.trajectory(steps, final), memory


def _unpacked(packed: bytes, most: int) -> bytes:
    unpacker = zlib.decompressobj()
    rows = unpacker.decompress(packed, most)
    if not unpacker.eof:
        raise TrajectoryError(f"it would unpack to more than {most} bytes, or is cut off")
    return rows


def _refuse_copies(what: str, stored: Sequence[bytes], places: Sequence[int]) -> None:
    """Raises TrajectoryError unless each is there for an observation, and few of them for many."""
    if set(places) != set(range(len(stored))):
        raise TrajectoryError(f"its {len(stored)} {what} do not fit its observations")
    most = sum(map(len, stored)) + _BEYOND
    if sum(len(stored[place]) for place in places) > most:
        raise TrajectoryError(f"its {what} would unpack to more than {most} bytes")


def _decoded_texts(texts: Sequence[bytes], beside: int, size: int) -> list[str]:
    """Decodes the texts of a file of ``size`` bytes while they and ``beside`` take no more memory than they may."""
    decoded: list[str] = []
    memory = beside
    for text in texts:
        decoded.append(text.decode())
        memory += sys.getsizeof(decoded[-1])
        _refuse_size("its texts and values unpack", memory, size)
    return decoded


def _said(steps: Sequence[_Done], params: str) -> int:
    """Returns about how many bytes actions, goals, params and numbers take in memory, before they are read."""
    texts = sum(map(_value_bytes, (params, *(said for done in steps for said in (done.action, done.achieved)))))
    return texts + sum(len(done.token_log_probs) + len(done.tokens) + len(done.prompt_tokens) for done in steps)


def _value_bytes(said: str) -> int:
    return len(said) + _VALUE_BYTES * (said.count(",") + said.count("[") + 3 * said.count("{"))


def _refuse_size(what: str, memory: int, size: int) -> None:
    if memory > most_memory(size):
        raise TrajectoryError(f"{what} to {memory} bytes; at most {most_memory(size)} are allowed for a file of {size}")


def _places(shown: Iterable[bytes]) -> tuple[list[int], list[bytes]]:
    """Returns the place of each text or image, and these: each once, as far as a reader takes so much."""
    places: list[int] = []
    stored: list[bytes] = []
    known: dict[bytes, int] = {}
    spare = _BEYOND
    for one in shown:
        if one in known and len(one) <= spare:
            spare -= len(one)
        else:
            known[one] = len(stored)
            stored.append(one)
        places.append(known[one])
    return places, stored


def _vector(seen: Observation) -> bytes | None:
    return None if seen.vector is None else np.asarray(seen.vector, "<f4").tobytes()


def _done(step: Step) -> _Done:
    return _Done(
        json.dumps(step.action),
        float32(step.log_prob),
        float32(step.reward),
        bool(step.terminated),
        bool(step.truncated),
        json.dumps([dict(goal) for goal in step.achieved]),
        np.asarray(step.token_log_probs, "<f4").tobytes(),
        np.asarray(step.tokens, "<i4").tobytes(),
        np.asarray(step.prompt_tokens, "<i4").tobytes(),
        step.policy_version,
    )


def _observation(seen: _Seen, texts: Sequence[str], images: Sequence[bytes]) -> Observation:
    vector = None if seen.vector is None else np.frombuffer(seen.vector, "<f4").astype(np.float32)
    return Observation(texts[seen.text], None if seen.image is None else images[seen.image], vector)


def _step(seen: Observation, done: _Done) -> Step:
    of_tokens = array("f", np.frombuffer(done.token_log_probs, "<f4"))
    written, read = (array("i", np.frombuffer(each, "<i4")) for each in (done.tokens, done.prompt_tokens))
    return Step(
        seen,
        json.loads(done.action),
        done.log_prob,
        done.reward,
        done.terminated,
        done.truncated,
        goals(done.achieved),
        of_tokens,
        written,
        read,
        done.policy_version,
    )


def goals(said: str) -> list[Goal]:
    """Returns the goals that a step met, as they are stored. Raises TrajectoryError, or ValueError for no JSON."""
    found = json.loads(said)
    if not isinstance(found, list) or not all(isinstance(goal, dict) for goal in found):
        raise TrajectoryError(f"the goals that a step met are {said[:80]!r}, not a list of JSON objects")
    return found


def params_of(said: str) -> dict[str, Json]:
    """Returns the params of a task, as they are stored. Raises TrajectoryError, or ValueError for no JSON."""
    found = json.loads(said)
    if not isinstance(found, dict):
        raise TrajectoryError(f"the params of the task are {said[:80]!r}, not a JSON object")
    return found
