"""What is on an Android screen: its picture, and its elements as ``uiautomator dump`` tells them."""

from __future__ import annotations

import io
import re
import struct
import time
import xml.etree.ElementTree as ET
from collections.abc import Callable, Iterator, Sequence

import numpy as np
from PIL import Image

from digirl_dist.emulator import Label, png
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
    return np.frombuffer(data, np.uint8, offset=header).reshape(height, width, 4)[:, :, :3]


def equal(one: np.ndarray, other: np.ndarray, masked: Sequence[Sequence[float]]) -> bool:
    """Whether two frames are equal outside of ``masked``: parts as [left, top, right, bottom] in shares."""
    if one.shape != other.shape:
        return False
    differs = (one != other).any(axis=2)
    height, width = differs.shape
    for left, top, right, bottom in masked:
        differs[int(top * height) : round(bottom * height), int(left * width) : round(right * width)] = False
    return not differs.any()


def settled(
    take: Callable[[], np.ndarray], masked: Sequence[Sequence[float]], gap_s: float, limit_s: float
) -> np.ndarray:
    """The first frame that equals the one before it, taken at least ``gap_s`` later; the newest after ``limit_s``.

    What changes in ``masked`` does not count; see ``equal``.
    """
    deadline = time.monotonic() + limit_s
    taken_at, frame = time.monotonic(), take()
    while time.monotonic() < deadline:
        time.sleep(max(0.0, taken_at + gap_s - time.monotonic()))
        before, taken_at = frame, time.monotonic()
        frame = take()
        if equal(before, frame, masked):
            break
    return frame


def encode(frame: np.ndarray, size: tuple[int, int], jpeg_quality: int | None) -> bytes:
    """The frame scaled to (height, width) as PNG, or as JPEG of that quality."""
    image = Image.fromarray(np.ascontiguousarray(frame))
    if image.size != (size[1], size[0]):
        image = image.resize((size[1], size[0]), Image.Resampling.BOX)
    if jpeg_quality is None:
        return png(image)
    buffer = io.BytesIO()
    image.save(buffer, "jpeg", quality=jpeg_quality)
    return buffer.getvalue()


def _start(data: bytes) -> str:
    """What an error message of the device may be in."""
    return repr(data[:120].decode("ascii", "replace"))


_FILE = "/sdcard/digirl-window.xml"
DUMP = f"rm -f {_FILE}; uiautomator dump {_FILE} >/dev/null; cat {_FILE}"
"""The shell command that prints the elements on the screen as XML, or why it cannot."""

_ROLES = {
    "Button": "button",
    "CheckBox": "checkbox",
    "CheckedTextView": "checkbox",
    "EditText": "textbox",
    "ImageButton": "button",
    "RadioButton": "radio",
    "SeekBar": "slider",
    "Spinner": "combobox",
    "Switch": "switch",
    "ToggleButton": "switch",
}
"""Android's classes in the words of web pages; those of its support libraries end alike (SwitchCompat)."""

_CLASS = re.compile(rf"({'|'.join(sorted(_ROLES, key=len, reverse=True))})(?:Compat)?$")
_BOUNDS = re.compile(r"\[(-?\d+),(-?\d+)\]\[(-?\d+),(-?\d+)\]")


def is_dump(said: str) -> bool:
    """Whether ``DUMP`` printed the elements, and all of them."""
    return said.startswith("<?xml") and said.rstrip().endswith("</hierarchy>")


def labels_of(dump: str, width: int, height: int) -> list[Label]:
    """Returns the elements that have a name or a role, of a screen of ``width`` x ``height`` pixels.

    What was typed into a field for a password is not told. Raises EmulatorError for XML that cannot be read.
    """
    try:
        tree = ET.fromstring(dump)
    except ET.ParseError as error:
        raise EmulatorError(f"what uiautomator tells of the screen cannot be read ({error}): {dump[:200]!r}") from error
    return list(_labels(tree, width, height))


def _labels(tree: ET.Element, width: int, height: int) -> Iterator[Label]:
    for node in tree.iter("node"):
        name, role = _name(node), _role(node)
        found = _BOUNDS.fullmatch(node.get("bounds", ""))
        if not found or not (name or role):
            continue
        left, top, right, bottom = map(int, found.groups())
        left, top, right, bottom = max(left, 0), max(top, 0), min(right, width), min(bottom, height)
        if left < right and top < bottom:
            yield Label(name, role, left / width, top / height, right / width, bottom / height)


def _name(node: ET.Element) -> str:
    said = ("content-desc", "hint") if node.get("password") == "true" else ("text", "content-desc", "hint")
    return next((text for key in said if (text := node.get(key, "").strip())), "")


def _role(node: ET.Element) -> str:
    known = _CLASS.search(node.get("class", ""))
    if known:
        return _ROLES[known[1]]
    return "button" if node.get("clickable") == "true" and _name(node) else ""
