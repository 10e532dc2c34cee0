"""One episode in one file: as a worker sends it, and as it lies in the run folder until its iteration ends.

A digest of all that follows, then MessagePack: the images as they are, each once however often it was seen, and the
rest in a part that zlib has packed. Reading one takes a quarter of the processor time of Parquet with its 25 columns,
and memory as its size is.
"""

from __future__ import annotations

import json
import zlib
from collections.abc import Sequence
from functools import cache
from pathlib import Path
from typing import Annotated, Any

import msgspec
import numpy as np
import xxhash
from msgspec import Meta

from digirl_dist.errors import TrajectoryError
from digirl_dist.settings import regular_file
from digirl_dist.storage import atomic_files
from digirl_dist.tasks import Purpose, Task, Ticket
from digirl_dist.trajectory import Goal, Observation, Step, Trajectory, float32
from digirl_dist.types import Json, Natural

SUFFIX = ".episode"
_DIGEST_BYTES = 16
_FASTEST = 1
_BEYOND = 32 << 20
"""Bytes that the packed part may unpack to beyond the size of the file."""
_MOST_VALUES = 2 << 20
"""Of actions and goals together, an object as three: an empty list takes three bytes there, and sixty in memory."""
_MOST_STEPS = 1 << 20
_LONGEST_REASON = 500


class _Seen(msgspec.Struct, array_like=True, frozen=True, gc=False):
    text: str
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


class _Origin(msgspec.Struct, array_like=True, frozen=True):
    iteration: Natural
    index: Natural
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
            ("origin", _Origin),
            ("steps", Annotated[list[_Done], Meta(min_length=1, max_length=most_steps)]),
            ("seen", Annotated[list[_Seen], Meta(max_length=most_steps + 1)]),
        ],
        array_like=True,
    )
    return msgspec.msgpack.Decoder(rows)


def write(path: Path, episode: Trajectory, flushed: bool = True) -> None:
    """Writes a file beside ``path`` and renames it (see ``atomic_files``), so ``path`` is never half-written."""
    atomic_files.write_bytes(path, encode(episode), flushed)


def encode(episode: Trajectory) -> bytes:
    """Returns the content of the file. Rewards and log-probabilities become float32, as Parquet has them."""
    seen = [*(step.observation for step in episode.steps), episode.final_observation]
    places, images = _places([one.image for one in seen])
    shown = [_seen(one, place) for one, place in zip(seen, places, strict=True)]
    rows = _encode([_origin(episode), [_done(step) for step in episode.steps], shown])
    content = _encode([zlib.compress(rows, _FASTEST), images])
    return xxhash.xxh3_128_digest(content) + content


def read(path: Path, most_steps: int = _MOST_STEPS) -> Trajectory:
    """Returns the episode of a file that another machine wrote. Raises TrajectoryError for anything else."""
    try:
        with regular_file.opened(path) as file:
            return _decoded(file.read(), most_steps)
    except (OSError, zlib.error, msgspec.MsgspecError, ValueError, RecursionError, TrajectoryError) as error:
        raise TrajectoryError(f"{path} is not a trajectory file: {str(error)[:_LONGEST_REASON]}") from error


def _decoded(data: bytes, most_steps: int) -> Trajectory:
    content = memoryview(data)[_DIGEST_BYTES:]
    if xxhash.xxh3_128_digest(content) != data[:_DIGEST_BYTES]:
        raise TrajectoryError("it was altered or cut off")
    file = _FILES.decode(content)
    rows = _decoder(most_steps).decode(_unpacked(file.rows, len(data) + _BEYOND))
    shown = {one.image for one in rows.seen if one.image is not None}
    if len(rows.seen) != len(rows.steps) + 1 or shown != set(range(len(file.images))):
        reason = f"{len(rows.steps)} steps, {len(rows.seen)} observations and {len(file.images)} images do not fit"
        raise TrajectoryError(reason)
    most = sum(map(len, file.images)) + _BEYOND  # each step has its own copy in Parquet
    if sum(len(file.images[one.image]) for one in rows.seen if one.image is not None) > most:
        raise TrajectoryError(f"its images would unpack to more than {most} bytes")
    said = [rows.origin.params, *(each for done in rows.steps for each in (done.action, done.achieved))]
    if sum(map(_values, said)) > _MOST_VALUES:
        raise TrajectoryError(f"its actions and goals would unpack to more than {_MOST_VALUES} values")
    *seen, final = (_observation(one, file.images) for one in rows.seen)
    steps = [_step(one, done) for one, done in zip(seen, rows.steps, strict=True)]
    told = rows.origin
    task = Task(told.task, told.instruction, params_of(told.params))
    ticket = Ticket(told.iteration, told.index, task, told.seed, told.policy_version, purpose=told.purpose)
    return Trajectory(ticket, told.episode_id, told.worker, told.slot, steps, final, told.success)


def _unpacked(packed: bytes, most: int) -> bytes:
    unpacker = zlib.decompressobj()
    rows = unpacker.decompress(packed, most)
    if not unpacker.eof:
        raise TrajectoryError(f"it would unpack to more than {most} bytes, or is cut off")
    return rows


def _values(said: str) -> int:
    """Returns about how many lists, objects and members JSON has, before it is read."""
    return said.count(",") + said.count("[") + 3 * said.count("{")


def _origin(episode: Trajectory) -> _Origin:
    ticket = episode.ticket
    return _Origin(
        ticket.iteration,
        ticket.index,
        ticket.purpose,
        ticket.task.id,
        ticket.task.instruction,
        ticket.seed,
        ticket.policy_version,
        episode.episode_id,
        episode.worker,
        episode.slot,
        bool(episode.success),
        json.dumps(ticket.task.params),
    )


def _places(shown: Sequence[bytes | None]) -> tuple[list[int | None], list[bytes]]:
    """Returns the place of each image, and the images: each once, as far as a reader takes so much."""
    places: list[int | None] = []
    images: list[bytes] = []
    known: dict[bytes, int] = {}
    spare = _BEYOND
    for image in shown:
        if image is not None and image in known and len(image) <= spare:
            spare -= len(image)
        elif image is not None:
            known[image] = len(images)
            images.append(image)
        places.append(None if image is None else known[image])
    return places, images


def _seen(one: Observation, place: int | None) -> _Seen:
    vector = None if one.vector is None else np.asarray(one.vector, "<f4").tobytes()
    return _Seen(one.text, vector, place)


def _done(step: Step) -> _Done:
    goals = json.dumps([dict(goal) for goal in step.achieved])
    return _Done(
        json.dumps(step.action),
        float32(step.log_prob),
        float32(step.reward),
        bool(step.terminated),
        bool(step.truncated),
        goals,
    )


def _observation(seen: _Seen, images: Sequence[bytes]) -> Observation:
    vector = None if seen.vector is None else np.frombuffer(seen.vector, "<f4").astype(np.float32)
    return Observation(seen.text, None if seen.image is None else images[seen.image], vector)


def _step(seen: Observation, done: _Done) -> Step:
    return Step(
        seen, json.loads(done.action), done.log_prob, done.reward, done.terminated, done.truncated, goals(done.achieved)
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
