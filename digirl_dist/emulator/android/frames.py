"""Pictures of a screen: read from what ``screencap`` writes, compared, and encoded for the agent."""

from __future__ import annotations

import io
import struct
import time
from collections.abc import Callable, Sequence

import numpy as np
from PIL import Image

from digirl_dist.errors import EmulatorError

_RGBA, _RGBX = 1, 2
"""Android's pixel formats (android.graphics.PixelFormat) whose bytes are red, green, blue and one more."""


def read_png(data: bytes) -> np.ndarray:
    """uint8, shape [height, width, 3]. Raises EmulatorError for what is no PNG."""
    try:
        with Image.open(io.BytesIO(data), formats=("PNG",)) as image:
            return np.asarray(image.convert("RGB"))
    except (OSError, ValueError, SyntaxError, Image.DecompressionBombError) as error:
        raise EmulatorError(f"screencap answered with {len(data)} bytes that are no PNG: {_start(data)}") from error


def read_raw(data: bytes) -> np.ndarray:
    """The same from ``screencap`` without ``-p``: width, height, format, on newer versions a colour space, pixels."""
    if len(data) < 12:
        raise EmulatorError(f"screencap answered with {len(data)} bytes only: {_start(data)}")
    width, height, pixel_format = struct.unpack_from("<III", data)
    header = len(data) - 4 * width * height
    if header not in (12, 16) or pixel_format not in (_RGBA, _RGBX):
        raise EmulatorError(
            f"screencap answered with {width} x {height} pixels of format {pixel_format} in {len(data)} bytes, "
            f"which cannot be read: {_start(data)}"
        )
    pixels = np.frombuffer(data, np.uint8, offset=header).reshape(height, width, 4)
    return pixels[:, :, :3]


class Mask:
    """Parts of the screen that do not count, as [left, top, right, bottom] in shares."""

    def __init__(self, parts: Sequence[Sequence[float]]) -> None:
        self._parts = parts

    def equal(self, one: np.ndarray, other: np.ndarray) -> bool:
        """Whether two frames are equal outside the mask."""
        if one.shape != other.shape:
            return False
        differs = (one != other).any(axis=2)
        height, width = differs.shape
        for left, top, right, bottom in self._parts:
            rows, columns = (
                slice(int(top * height), round(bottom * height)),
                slice(int(left * width), round(right * width)),
            )
            differs[rows, columns] = False
        return not differs.any()


def settled(take: Callable[[], np.ndarray], mask: Mask, gap_s: float, limit_s: float) -> np.ndarray:
    """The first frame that equals the one before it, taken at least ``gap_s`` later; the newest after ``limit_s``."""
    deadline = time.monotonic() + limit_s
    taken_at, frame = time.monotonic(), take()
    while time.monotonic() < deadline:
        time.sleep(max(0.0, taken_at + gap_s - time.monotonic()))
        before, taken_at = frame, time.monotonic()
        frame = take()
        if mask.equal(before, frame):
            break
    return frame


def encode(frame: np.ndarray, size: tuple[int, int], jpeg_quality: int | None) -> bytes:
    """The frame scaled to (height, width) as PNG, or as JPEG of that quality."""
    image = Image.fromarray(np.ascontiguousarray(frame))
    if image.size != (size[1], size[0]):
        image = image.resize((size[1], size[0]), Image.Resampling.BOX)
    buffer = io.BytesIO()
    if jpeg_quality is None:
        image.save(buffer, "png", compress_level=1)
    else:
        image.save(buffer, "jpeg", quality=jpeg_quality)
    return buffer.getvalue()


def _start(data: bytes) -> str:
    """What an error message of the device may be in."""
    return repr(data[:120].decode("ascii", "replace"))
