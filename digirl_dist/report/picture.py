"""Screenshots, which come from workers: decoded within bounds, made small, and set side by side."""

from __future__ import annotations

import base64
import io
from collections.abc import Iterator
from contextlib import contextmanager

from PIL import Image, ImageDraw

from digirl_dist.emulator.touch_actions import DeviceAction
from digirl_dist.errors import ActionError
from digirl_dist.trajectory import Trajectory
from digirl_dist.types import Json

SHOWN_FORMATS = ("PNG", "JPEG")
UNREADABLE = (OSError, ValueError, SyntaxError, Image.DecompressionBombError)
"""What Pillow raises for bytes that are no picture, and ``decoded`` for one that is no screenshot."""

_MAX_PIXELS = 16_000_000
_MAX_HEIGHT = 480
_MAX_BYTES = 24_000
_FRAMES, _FRAME_HEIGHT = 8, 240
_COLOURS = 64


def embed(image: bytes) -> str:
    """Returns a small screenshot unchanged, a larger one scaled down as JPEG, as a data URI; "" for none to be shown.

    The bytes come from a worker, so only PNG and JPEG no larger than a screen are decoded.
    """
    try:
        with _screenshot(image) as opened:
            opened.load()
            if len(image) <= _MAX_BYTES and opened.height <= _MAX_HEIGHT:
                return _uri(image, Image.MIME[opened.format or "PNG"])
            return _scaled_down(opened)
    except UNREADABLE:
        return ""


def decoded(image: bytes) -> Image.Image:
    """Decodes a screenshot to RGB. It comes from a worker, so anything larger than a screen raises ValueError."""
    with _screenshot(image) as opened:
        return opened.convert("RGB")


@contextmanager
def _screenshot(image: bytes) -> Iterator[Image.Image]:
    """Opens an image without decoding it; anything but PNG and JPEG no larger than a screen raises ``UNREADABLE``."""
    with Image.open(io.BytesIO(image), formats=SHOWN_FORMATS) as opened:
        if opened.width * opened.height > _MAX_PIXELS:
            raise ValueError(f"an image of {opened.width} x {opened.height} pixels is no screenshot")
        yield opened


def _scaled_down(opened: Image.Image) -> str:
    small = opened.convert("RGB")
    small.thumbnail((2 * _MAX_HEIGHT, _MAX_HEIGHT), reducing_gap=2.0)
    written = io.BytesIO()
    small.save(written, "JPEG", quality=80)
    return _uri(written.getvalue(), "image/jpeg")


def _uri(encoded: bytes, mime: str) -> str:
    return f"data:{mime};base64,{base64.b64encode(encoded).decode('ascii')}"


def screenshot(image: bytes | None) -> tuple[bytes, str] | None:
    """Returns PNG or JPEG bytes as they are, with their MIME type; None for anything else that a worker may send."""
    try:
        with _screenshot(image or b"") as opened:
            return image or b"", Image.MIME[opened.format or "PNG"]
    except UNREADABLE:
        return None


def film(trajectory: Trajectory) -> bytes | None:
    """Returns screens of the episode side by side as PNG, with touch points; None without screens that can be shown."""
    try:
        frames = list(_frames(trajectory))
    except UNREADABLE:
        return None
    if not frames:
        return None
    strip = Image.new("RGB", (sum(frame.width for frame in frames) + 4 * (len(frames) - 1), _FRAME_HEIGHT), "white")
    left = 0
    for frame in frames:
        strip.paste(frame, (left, 0))
        left += frame.width + 4
    written = io.BytesIO()
    strip.quantize(_COLOURS).convert("RGB").save(written, "PNG", optimize=True)
    return written.getvalue()


def _frames(trajectory: Trajectory) -> Iterator[Image.Image]:
    """Yields evenly chosen screens, the last one without an action. They come from a worker: see ``decoded``."""
    seen: list[tuple[bytes | None, Json]] = [(step.observation.image, step.action) for step in trajectory.steps]
    shown = [(image, action) for image, action in [*seen, (trajectory.final_observation.image, None)] if image]
    last = len(shown) - 1
    chosen = sorted({round(k * last / (_FRAMES - 1)) for k in range(_FRAMES)}) if last >= 0 else []
    for image, action in (shown[place] for place in chosen):
        frame = decoded(image)
        width = max(1, min(2 * _FRAME_HEIGHT, frame.width * _FRAME_HEIGHT // frame.height))
        frame = frame.resize((width, _FRAME_HEIGHT))
        _mark(frame, action)
        yield frame


def _mark(frame: Image.Image, action: Json) -> None:
    """Draws where the action touches the screen."""
    try:
        touched = DeviceAction.from_json(action)
    except (ActionError, TypeError):
        return
    if "x" in DeviceAction.FIELDS.get(touched.type, ()):
        x, y, size = touched.x * frame.width, touched.y * frame.height, _FRAME_HEIGHT / 24
        ImageDraw.Draw(frame).ellipse((x - size, y - size, x + size, y + size), outline="red", width=3)
