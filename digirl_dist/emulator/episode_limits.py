"""Limits of an episode's content: a worker refuses to send what lies beyond them, and the host refuses to store it.

They are chosen so that no algorithm overflows: with rewards and vectors at their limits, the squared gradient of a
squared error stays below 1e30 in float32.
"""

from __future__ import annotations

import math
import struct
from collections.abc import Mapping
from itertools import count

import numpy as np

from digirl_dist.errors import TrajectoryError
from digirl_dist.plain_text import is_unicode
from digirl_dist.trajectory import Observation, Step, Trajectory
from digirl_dist.types import MOST_TOKENS

MOST_STEPS = 10_000
"""Bounds an episode whose emulator alone decides when it ends."""
LARGEST_REWARD = 1e6
"""Of one step, and of all steps of an episode together; without signs."""
LARGEST_NUMBER = 1e6
"""In an observation's vector or a continuous action; without sign."""
LOWEST_LOG_PROB = -1e4
"""Of one token, or of an action of unknown tokens; 64 tokens, each the least probable of 100,000, have -737."""
HIGHEST_LOG_PROB = 1e-3
"""Of an action that is one of finitely many; the rest is rounding."""
HIGHEST_LOG_DENSITY = 1e3
"""Of an action with a continuous part."""
LONGEST_TEXT = 1 << 17
"""Characters of an observation's text."""
MOST_PIXELS = 1 << 24
"""Of a screenshot; a telephone's has a quarter of that."""
MOST_PIXELS_OF_EPISODE = 1 << 29
"""Of all different screenshots of an episode, beyond ``_PIXELS_OF_BYTE``: 200 telephone screens, 16,000 of Atari."""
FREE_MEMORY = 8 << 20
"""Bytes that an episode may take in memory beyond ``MEMORY_OF_BYTE``."""
MEMORY_OF_BYTE = 8
"""Bytes in memory for each byte of the episode's file."""

_ROUNDING = 1e-3
"""By how much sums may differ from what they should be, for each number in them."""
_PIXELS_OF_BYTE = 16
_BYTES_OF_PIXEL = 8
_MOST_METADATA = 1 << 16
"""Bytes of a screenshot that are no pixels: a colour profile, for example."""
_PNG = b"\x89PNG\r\n\x1a\n"
_JPEG = b"\xff\xd8"
_PNG_DATA = b"IDAT"
_FEW_CHUNKS = 64
_SMALL_CHUNK = 1 << 12
"""Encoders write chunks of 8 KiB and more; each costs the reader a turn."""
_PNG_METADATA = frozenset(
    (
        b"PLTE",
        b"tRNS",
        b"cHRM",
        b"gAMA",
        b"iCCP",
        b"sBIT",
        b"sRGB",
        b"cICP",
        b"bKGD",
        b"pHYs",
        b"tIME",
        b"tEXt",
        b"iTXt",
        b"eXIf",
    )
)
_SIZES_OF_JPEG = frozenset({*range(0xC0, 0xD0)} - {0xC4, 0xC8, 0xCC})
_JPEG_METADATA = frozenset((*range(0xE0, 0xF0), 0xFE))
_SCAN = 0xDA


def check_observation(seen: Observation) -> None:
    """Raises TrajectoryError for a text or a vector that no episode may have; of an image, see ``pixels``."""
    if not isinstance(seen.text, str):
        raise TrajectoryError(f"the text of the observation is a {type(seen.text).__name__}")
    if len(seen.text) > LONGEST_TEXT:
        raise TrajectoryError(f"a text of {len(seen.text)} characters; at most {LONGEST_TEXT} are allowed")
    if not is_unicode(seen.text):
        raise TrajectoryError("the text of the observation has half a surrogate pair, which no file can hold")
    check_vector(seen.vector)
    if not isinstance(seen.image, bytes | None):
        kind = type(seen.image).__name__
        raise TrajectoryError(f"the image of the observation is a {kind}, not the bytes of a PNG or JPEG")


def check_vector(vector: np.ndarray | None) -> None:
    """Raises TrajectoryError for a number that is not finite, or beyond the range."""
    if vector is None or (getattr(vector, "dtype", None) == np.float32 and np.vdot(vector, vector) <= LARGEST_NUMBER):
        return  # the sum of squares takes a third of the time
    try:
        largest = float(np.abs(vector).max(initial=0.0))
    except (TypeError, ValueError) as error:
        raise TrajectoryError(f"the vector of the observation is no array of numbers: {vector!r:.100}") from error
    if not math.isfinite(largest):
        raise TrajectoryError("the vector of the observation has NaN or infinite numbers")
    if largest > LARGEST_NUMBER:
        raise TrajectoryError(
            f"a vector with the number {largest:g}; at most {LARGEST_NUMBER:g} is allowed: scale it, or leave it out"
        )


def check_reward(reward: float) -> None:
    """Raises TrajectoryError for one that is not finite, or beyond the range."""
    if not math.isfinite(reward):
        raise TrajectoryError(f"the reward is {reward:g}, which is no finite number")
    if abs(reward) > LARGEST_REWARD:
        raise TrajectoryError(f"the reward is {reward:g}; at most {LARGEST_REWARD:g} is allowed: scale it")


def check_step(step: Step) -> None:
    """Raises TrajectoryError for a reward or a log-probability beyond its range; NaN is an unknown log-probability."""
    check_reward(step.reward)
    lowest = LOWEST_LOG_PROB * max(1, len(step.token_log_probs))
    if not math.isnan(step.log_prob) and not lowest <= step.log_prob <= HIGHEST_LOG_DENSITY:
        raise TrajectoryError(
            f"the log-probability of the action is {step.log_prob:g}; {lowest:g} to {HIGHEST_LOG_DENSITY:g} is allowed"
        )
    if len(step.token_log_probs) or len(step.tokens):
        _check_tokens(step)


def _check_tokens(step: Step) -> None:
    """Raises TrajectoryError unless there is one log-probability for each token, and ``log_prob`` is their sum."""
    tokens = step.action.get("tokens") if isinstance(step.action, dict) else None
    count = len(step.tokens) or (len(tokens) if isinstance(tokens, list) else 0)
    if not len(step.token_log_probs) == count <= MOST_TOKENS:
        raise TrajectoryError(
            f"{len(step.token_log_probs)} log-probabilities of tokens for {count} tokens; "
            f"there must be one each, and at most {MOST_TOKENS}"
        )
    if min([*step.tokens, *step.prompt_tokens], default=0) < 0:
        raise TrajectoryError("the id of a token is negative")
    of_tokens = np.asarray(step.token_log_probs, np.float64)
    if not (np.isfinite(of_tokens) & (of_tokens >= LOWEST_LOG_PROB) & (of_tokens <= HIGHEST_LOG_PROB)).all():
        raise TrajectoryError(f"a token's log-probability is not between {LOWEST_LOG_PROB:g} and {HIGHEST_LOG_PROB:g}")
    if not abs(of_tokens.sum() - step.log_prob) <= _ROUNDING * (1 + count):
        raise TrajectoryError(f"log-probabilities of tokens sum up to {of_tokens.sum():g}, not to {step.log_prob:g}")


def check_sums(episode: Trajectory, screens: Mapping[bytes, int]) -> None:
    """Raises TrajectoryError for too much reward or too many pixels in all steps together.

    ``screens`` are its different screenshots, each with its pixels.
    """
    rewards = sum(abs(step.reward) for step in episode.steps)
    if rewards > LARGEST_REWARD:
        raise TrajectoryError(f"rewards of {rewards:g} in sum; at most {LARGEST_REWARD:g} is allowed: scale them")
    found, most = sum(screens.values()), MOST_PIXELS_OF_EPISODE + _PIXELS_OF_BYTE * sum(map(len, screens))
    if found > most:
        raise TrajectoryError(
            f"{len(screens)} screenshots of {found} pixels in sum; at most {most} are allowed: "
            "show smaller ones, or set max_steps"
        )


def most_memory(size: int) -> int:
    """Returns the bytes that an episode may take in memory whose file has ``size`` bytes."""
    return FREE_MEMORY + MEMORY_OF_BYTE * size


def pixels(image: bytes) -> int:
    """Returns how many pixels a screenshot has. Raises TrajectoryError as ``size`` does."""
    height, width = size(image)
    return height * width


def size(image: bytes) -> tuple[int, int]:
    """Returns height and width of a screenshot. Raises TrajectoryError unless it is a PNG or a JPEG of little else."""
    try:
        width, height, metadata = _of_png(image) if image.startswith(_PNG) else _of_jpeg(image)
    except (struct.error, IndexError) as error:
        raise TrajectoryError(f"an image of {len(image)} bytes cannot be decoded: it is cut off") from error
    area = width * height
    if area > MOST_PIXELS:
        raise TrajectoryError(f"an image of {height} x {width} pixels; at most {MOST_PIXELS} are allowed")
    if metadata > _MOST_METADATA:
        raise TrajectoryError(
            f"an image with {metadata} bytes that are no pixels; at most {_MOST_METADATA} are allowed: "
            "encode it without metadata"
        )
    if len(image) > _BYTES_OF_PIXEL * area + _MOST_METADATA:
        raise TrajectoryError(f"an image of {height} x {width} pixels in {len(image)} bytes, more than pixels can take")
    return height, width


def _of_png(image: bytes) -> tuple[int, int, int]:
    """Returns width, height, and the bytes that are no pixels. Raises TrajectoryError for a chunk of another kind."""
    width, height = struct.unpack_from(">II", image, 16)
    at, metadata, kind = len(_PNG), 0, b""
    chunks = count(1)
    while kind != b"IEND":
        if next(chunks) > _FEW_CHUNKS + len(image) // _SMALL_CHUNK:
            raise TrajectoryError(f"a PNG of {len(image)} bytes in more than {next(chunks) - 2} chunks")
        size, kind = struct.unpack_from(">I4s", image, at)
        at += 12 + size
        if kind in _PNG_METADATA or size == 0:
            metadata += 12 + size
        elif kind not in (b"IHDR", _PNG_DATA):
            raise TrajectoryError(f"a PNG with a chunk {kind!r} of {size} bytes, which is no part of a screenshot")
    return width, height, metadata + abs(len(image) - at)


def _of_jpeg(image: bytes) -> tuple[int, int, int]:
    """As ``_of_png``, of what precedes the first scan."""
    if not image.startswith(_JPEG):
        raise TrajectoryError(f"an image of {len(image)} bytes cannot be decoded: it is neither PNG nor JPEG")
    at, metadata, width, height = len(_JPEG), 0, 0, 0
    while (kind := image[at + 1]) != _SCAN:
        (size,) = struct.unpack_from(">H", image, at + 2)
        if kind in _SIZES_OF_JPEG:
            height, width = struct.unpack_from(">HH", image, at + 5)
        elif kind in _JPEG_METADATA:
            metadata += size + 2
        if image[at] != 0xFF or size < 2:
            raise TrajectoryError(f"an image of {len(image)} bytes cannot be decoded: its markers are no JPEG's")
        at += 2 + size
    return width, height, metadata
