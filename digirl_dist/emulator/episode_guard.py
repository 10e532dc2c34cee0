"""Holds an episode against its ticket and against the spaces of emulator and agent, before it is stored.

An episode may come from a lying worker, or from an emulator of the user's that answers NaN. Whatever passes here can be
learned from as far as its values go: all numbers are in their ranges, all shapes fit, every image decodes, and nothing
is there that the emulator's spec does not have. ``episode_limits`` has what is the same for every emulator.
"""

from __future__ import annotations

import io
import json
import math
import struct
import zlib
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING

from digirl_dist.emulator import DiscreteActions, EmulatorSpec, ProductActions, episode_limits
from digirl_dist.emulator.episode_limits import HIGHEST_LOG_PROB, MOST_PIXELS, MOST_STEPS
from digirl_dist.errors import ActionError, TrajectoryError
from digirl_dist.tasks import Ticket
from digirl_dist.trajectory import Goal, Observation, Step, Trajectory
from digirl_dist.types import Json

if TYPE_CHECKING:
    from PIL.Image import Image

_MOST_SCANS = 32
"""Of a progressive JPEG, which has about ten: each goes over all pixels, and may take 23 bytes."""
_JPEG_SCAN = b"\xff\xda"
_PNG_BEGIN = b"\x89PNG\r\n\x1a\n\0\0\0\x0dIHDR"
_PNG_PIXELS = 33
"""Where the first chunk after the header begins."""
_PNG_END = b"\0\0\0\0IEND\xaeB`\x82"
_PNG_CHANNELS = {0: 1, 2: 3, 4: 2, 6: 4}
"""By colour type; palettes have more chunks."""
_LAST_PNG_FILTER = 4
_LONGEST_ACTION = 1 << 20
_LONGEST_GOALS = 1 << 16
_DEEPEST = 32
"""Levels of an action or a goal: what one thread just reads, another with more on its stack cannot write."""

ActionCheck = Callable[[EmulatorSpec, Observation, Json], None]
"""Raises ActionError for an action that the agent cannot have chosen for the observation."""


@dataclass(frozen=True)
class EpisodeGuard:
    """What is known of every episode of a run. Without ``spec``, what holds for any emulator is checked."""

    emulator: str = "unknown"
    """Its name in the settings, for messages."""
    spec: EmulatorSpec | None = None
    max_steps: int | None = None
    check_action: ActionCheck | None = None
    """None: only their author knows the actions."""
    knows_log_prob: bool = True
    """False for an agent that may not know the probability of its actions, and says NaN then."""

    @property
    def most_steps(self) -> int:
        longest = self.spec.longest if self.spec else None
        return min(self.max_steps or MOST_STEPS, longest or MOST_STEPS)

    def check(self, episode: Trajectory, ticket: Ticket, worker: str) -> None:
        """Raises TrajectoryError, naming emulator, task and step, unless this is the ticket's episode as leased."""
        self._check_origin(episode, ticket, worker)
        where = f"emulator {self.emulator}, task {ticket.task.id}"
        seen = episode.observations
        places = [*(f"{where}, step {number}" for number in range(len(episode.steps))), f"{where}, final observation"]
        with _at(where):
            if not 0 < len(episode.steps) <= self.most_steps:
                raise TrajectoryError(f"{len(episode.steps)} steps; at most {self.most_steps} are allowed")
        for number, (place, one) in enumerate(zip(places, seen, strict=True)):
            with _at(place):
                self._check_values(one)
                if number < len(episode.steps):
                    self._check_step(episode.steps[number], number == len(episode.steps) - 1)
        screens = {one.image: at for at, one in reversed([*zip(places, seen, strict=True)]) if one.image is not None}
        sizes = {}
        for image, place in screens.items():  # equal screens are one
            with _at(place):
                sizes[image] = episode_limits.pixels(image)
        with _at(where):
            episode_limits.check_sums(episode, sizes)
        for image, place in screens.items():
            with _at(place):
                _check_image(image, self._image_size)

    def check_question(self, seen: Observation) -> None:
        """Raises TrajectoryError for an observation that no policy is to be asked about: one such holds up all others.

        Of an image only the header is looked at: its size, which bounds what it takes to decode.
        """
        with _at(f"emulator {self.emulator}"):
            self._check_values(seen)
            for image in (*seen.earlier, *([] if seen.image is None else [seen.image])):
                episode_limits.pixels(image)
                if not _promises(image, self._image_size):
                    with _opened(image, self._image_size):
                        pass

    def _check_origin(self, episode: Trajectory, ticket: Ticket, worker: str) -> None:
        if misfit := episode.ticket.misfit(ticket):
            raise TrajectoryError(misfit)
        if episode.worker != worker:
            raise TrajectoryError(
                f"it is the episode of another worker: {episode.worker!r:.200} instead of {worker!r:.200}"
            )

    def _check_step(self, step: Step, is_last: bool) -> None:
        episode_limits.check_step(step)
        if self.knows_log_prob and not step.log_prob <= (HIGHEST_LOG_PROB if self._counts_actions else math.inf):
            raise TrajectoryError(f"the log-probability of the action is {step.log_prob:g}")
        if step.ended != is_last:
            raise TrajectoryError("the episode does not end" if is_last else "the episode ends here, but steps follow")
        self._check_action(step.observation, step.action)
        _check_goals(step.achieved)

    def _check_action(self, seen: Observation, action: Json) -> None:
        try:
            _check_json(action, _LONGEST_ACTION)
            if self.spec is not None and self.check_action is not None:
                self.check_action(self.spec, seen, action)
        except (ActionError, ValueError, TypeError, RecursionError) as error:
            raise TrajectoryError(f"an action outside of the action space: {str(error)[:300]}") from error

    @property
    def _image_size(self) -> tuple[int, int] | None:
        return None if self.spec is None else self.spec.image_size

    def _check_values(self, seen: Observation) -> None:
        """Checks all but what the image contains."""
        episode_limits.check_observation(seen)
        size = 0 if seen.vector is None else seen.vector.size
        wanted = 0 if self.spec is None else self.spec.vector_size
        if (wanted or self._is_strict) and size != wanted:
            raise TrajectoryError(f"a vector of {size} numbers; the emulator's spec says vector_size={wanted}")
        if seen.image is None and self._image_size is not None:
            raise TrajectoryError("the observation has no image")
        if seen.image is not None and self._image_size is None and self._is_strict:
            raise TrajectoryError(f"an image of {len(seen.image)} bytes; the emulator's spec says image_size=None")

    @property
    def _counts_actions(self) -> bool:
        """Whether an action is one of finitely many, so that it has a probability rather than a density."""
        actions = None if self.spec is None else self.spec.actions
        parts = actions.parts if isinstance(actions, ProductActions) else (actions,)
        return all(isinstance(part, DiscreteActions) for part in parts)

    @property
    def _is_strict(self) -> bool:
        """Whether what the spec leaves out is known to be absent."""
        return self.spec is not None and self.check_action is not None


@contextmanager
def _at(place: str) -> Iterator[None]:
    """Names the place in a TrajectoryError."""
    try:
        yield
    except TrajectoryError as error:
        raise TrajectoryError(f"{place}: {error}") from error.__cause__


def _check_goals(goals: Sequence[Goal]) -> None:
    try:
        _check_json([dict(goal) for goal in goals], _LONGEST_GOALS)
    except (ValueError, TypeError, RecursionError) as error:
        raise TrajectoryError(f"goals that are no list of JSON objects: {str(error)[:300]}") from error


def _check_json(value: Json, longest: int) -> None:
    """Raises ValueError for what is no strict JSON in Unicode, longer than ``longest`` bytes or nests too deep."""
    if len(json.dumps(value, allow_nan=False, ensure_ascii=False).encode()) > longest:
        raise ValueError(f"it is longer than {longest} bytes")
    level = [value]
    for _ in range(_DEEPEST):
        if not level:
            return
        inside = [each.values() if isinstance(each, dict) else each for each in level if isinstance(each, dict | list)]
        level = [part for parts in inside for part in parts]
    raise ValueError(f"it nests deeper than {_DEEPEST} levels")


def _check_image(image: bytes, size: tuple[int, int] | None) -> None:
    """Decodes it, once its header promises no more than ``size``, (height, width)."""
    if not _is_plain_png(image, size):
        with _opened(image, size) as picture:
            picture.draft(None, (1, 1))  # decodes a JPEG's bytes and skips most of the arithmetic
            picture.load()


@contextmanager
def _opened(image: bytes, size: tuple[int, int] | None) -> Iterator[Image]:
    """Yields a picture that is no larger than its header may promise; what the block raises makes it unreadable."""
    from PIL import Image  # here, as configurations are composed without

    try:
        with Image.open(io.BytesIO(image), formats=("PNG", "JPEG")) as picture:
            width, height = picture.size
            if size is not None and min(size) > 0 and (height, width) != tuple(size):
                raise TrajectoryError(
                    f"an image of {height} x {width} pixels; the emulator's spec says {size[0]} x {size[1]}"
                )
            if width * height > MOST_PIXELS:  # this decoder found another header than episode_limits
                raise TrajectoryError(f"an image of {height} x {width} pixels; at most {MOST_PIXELS} are allowed")
            if picture.format == "JPEG" and (scans := image.count(_JPEG_SCAN)) > _MOST_SCANS:
                raise TrajectoryError(f"a JPEG of {scans} scans; at most {_MOST_SCANS} are allowed")
            yield picture
    except TrajectoryError:
        raise
    except Exception as error:  # Pillow's decoders raise nearly anything for a damaged file
        raise TrajectoryError(f"an image of {len(image)} bytes cannot be decoded: {str(error)[:200]}") from error


def _promises(image: bytes, size: tuple[int, int] | None) -> bool:
    """Returns whether it is certainly a PNG of that size to Pillow, which takes thirty times as long to tell.

    Its pixels follow its header, so no second header can say otherwise. False means unknown.
    """
    if size is None or min(size) <= 0 or not (isinstance(image, bytes) and image.startswith(_PNG_BEGIN)):
        return False
    width, height = struct.unpack_from(">II", image.ljust(_PNG_PIXELS), len(_PNG_BEGIN))
    return (height, width) == tuple(size) and image[_PNG_PIXELS + 4 : _PNG_PIXELS + 8] == b"IDAT"


def _is_plain_png(image: bytes, size: tuple[int, int] | None) -> bool:
    """Returns whether Pillow certainly decodes it: a PNG of that size with a header, pixels and an end alone.

    Unpacks the pixels without putting them together, for which Pillow needs up to five times as long. False means
    unknown.
    """
    if not (len(image) > _PNG_PIXELS and image.startswith(_PNG_BEGIN) and image.endswith(_PNG_END)):
        return False
    width, height, depth, colour, *methods, crc = struct.unpack_from(">IIBBBBBI", image, len(_PNG_BEGIN))
    row = 1 + width * _PNG_CHANNELS.get(colour, 0)
    fits = (height, width) == tuple(size) if size and min(size) > 0 else 0 < width * height <= MOST_PIXELS
    if not fits or depth != 8 or row == 1 or any(methods) or crc != zlib.crc32(image[12:29]):
        return False
    packed, at = [], _PNG_PIXELS
    while (chunk := struct.unpack_from(">I4s", image, at))[1] == b"IDAT":
        packed.append(image[at + 8 : at + 8 + chunk[0]])
        at += 12 + chunk[0]
        if at > len(image) - len(_PNG_END):
            return False
    unpacker = zlib.decompressobj()
    try:
        rows = unpacker.decompress(b"".join(packed), height * row + 1)
    except zlib.error:
        return False
    ended = at == len(image) - len(_PNG_END) and unpacker.eof
    return ended and len(rows) == height * row and max(rows[::row]) <= _LAST_PNG_FILTER
