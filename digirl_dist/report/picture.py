"""Screenshots as data URIs of limited size, with the step's action drawn on them."""

from __future__ import annotations

import base64
import io
import math
from collections.abc import Iterator
from dataclasses import dataclass
from xml.etree.ElementTree import Element

from PIL import Image

from digirl_dist.emulator.touch_actions import DeviceAction
from digirl_dist.report.markup import element, shorten

SHOWN_FORMATS = ("PNG", "JPEG")
UNREADABLE = (OSError, ValueError, SyntaxError, Image.DecompressionBombError)
"""What Pillow raises for bytes that are no picture, and ``decoded`` for one that is no screenshot."""

_MAX_PIXELS = 16_000_000
_MAX_HEIGHT = 480
_MAX_BYTES = 24_000


@dataclass(frozen=True)
class Picture:
    """An embedded image with its width and height in pixels."""

    width: int
    height: int
    uri: str


def embed(image: bytes) -> Picture | None:
    """Embeds a small screenshot unchanged, a larger one scaled down as JPEG; None if the image cannot be shown.

    The bytes come from a worker, so only PNG and JPEG no larger than a screen are decoded.
    """
    try:
        with Image.open(io.BytesIO(image), formats=SHOWN_FORMATS) as opened:
            if not is_screen(opened):
                return None
            opened.load()
            if len(image) <= _MAX_BYTES and opened.height <= _MAX_HEIGHT:
                return _picture(opened, image, Image.MIME[opened.format or "PNG"])
            return _scaled_down(opened)
    except UNREADABLE:
        return None


def decoded(image: bytes) -> Image.Image:
    """Decodes a screenshot to RGB. It comes from a worker, so anything larger than a screen raises ValueError."""
    with Image.open(io.BytesIO(image), formats=SHOWN_FORMATS) as opened:
        if not is_screen(opened):
            raise ValueError(f"an image of {opened.width} x {opened.height} pixels is no screenshot")
        frame: Image.Image = opened.convert("RGB")
        return frame


def is_screen(opened: Image.Image) -> bool:
    """Returns whether an image, not decoded yet, is no larger than a screen."""
    return opened.width * opened.height <= _MAX_PIXELS


def draw(picture: Picture, action: DeviceAction | None, title: str) -> Element:
    """Draws the action on the picture; ``title`` is its tooltip."""
    view = {"viewBox": f"0 0 {picture.width} {picture.height}", "role": "img"}
    size: dict[str, str | float] = {"width": picture.width, "height": picture.height}
    shown = element("image", {"href": picture.uri, **size})
    marks = [] if action is None else list(_marks(picture, action))
    return element("svg", view, element("title", None, title), shown, element("g", {"class": "marks"}, *marks))


def _scaled_down(opened: Image.Image) -> Picture:
    small = opened.convert("RGB")
    small.thumbnail((2 * _MAX_HEIGHT, _MAX_HEIGHT), reducing_gap=2.0)
    written = io.BytesIO()
    small.save(written, "JPEG", quality=80)
    return _picture(small, written.getvalue(), "image/jpeg")


def _picture(opened: Image.Image, encoded: bytes, mime: str) -> Picture:
    return Picture(opened.width, opened.height, f"data:{mime};base64,{base64.b64encode(encoded).decode('ascii')}")


def _marks(picture: Picture, action: DeviceAction) -> Iterator[Element]:
    unit = picture.height / 100
    start = (action.x * picture.width, action.y * picture.height)
    match action.type:
        case "tap":
            yield from _ring(start, unit)
        case "swipe":
            yield from _arrow(start, (action.to_x * picture.width, action.to_y * picture.height), unit)
        case "type":
            yield from _banner(picture, f"⌨ {action.text}", unit)
        case "type_at":
            yield from _ring(start, unit)
            yield from _banner(picture, f"⌨ {action.text}", unit)
        case keys:
            yield from _banner(picture, f"{keys} {action.text}".strip(), unit)


def _ring(center: tuple[float, float], unit: float) -> Iterator[Element]:
    """Yields a ring with a light edge, visible on any background."""
    place = {"cx": center[0], "cy": center[1]}
    yield element("circle", {"class": "edge", **place, "r": 4.2 * unit, "stroke-width": 2.6 * unit})
    yield element("circle", {"class": "ink", **place, "r": 4.2 * unit, "stroke-width": 1.4 * unit})
    yield element("circle", {"class": "fill", **place, "r": 1.1 * unit})


def _arrow(start: tuple[float, float], end: tuple[float, float], unit: float) -> Iterator[Element]:
    """Yields an arrow from a dot at ``start`` to a head at ``end``."""
    angle = math.atan2(end[1] - start[1], end[0] - start[0])
    wings = [
        (end[0] - 6 * unit * math.cos(angle + turn), end[1] - 6 * unit * math.sin(angle + turn)) for turn in (-0.5, 0.5)
    ]
    head = "L".join(f"{x:.1f} {y:.1f}" for x, y in (wings[0], end, wings[1]))
    path = f"M{start[0]:.1f} {start[1]:.1f}L{end[0]:.1f} {end[1]:.1f}M{head}"
    yield element("path", {"class": "edge", "d": path, "stroke-width": 3.0 * unit})
    yield element("path", {"class": "ink", "d": path, "stroke-width": 1.6 * unit})
    yield element("circle", {"class": "fill", "cx": start[0], "cy": start[1], "r": 2.0 * unit})


def _banner(picture: Picture, text: str, unit: float) -> Iterator[Element]:
    """Yields text over the bottom of the picture, cut to fit."""
    size = 5.2 * unit
    fits = max(4, int(picture.width / (0.58 * size)))
    box = {"x": 0, "y": picture.height - 9 * unit, "width": picture.width, "height": 9 * unit}
    place = {"x": picture.width / 2, "y": picture.height - 2.7 * unit, "font-size": size}
    yield element("rect", {"class": "banner", **box})
    yield element("text", {"class": "middle", **place}, shorten(text, fits))
