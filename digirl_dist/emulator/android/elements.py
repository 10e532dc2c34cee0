"""What is on an Android screen by name, as ``uiautomator dump`` tells it."""

from __future__ import annotations

import re
import xml.etree.ElementTree as ET
from collections.abc import Iterator

from digirl_dist.emulator import Label
from digirl_dist.errors import EmulatorError

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


def is_restless(said: str) -> bool:
    """Whether ``DUMP`` printed that the screen did not come to rest."""
    return "could not get idle state" in said


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
