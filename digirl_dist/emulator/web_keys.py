"""The key events of typed text, as DevTools take them: those of a US keyboard where it has the character."""

from __future__ import annotations

import string
from typing import Any

_SHIFT = 8
_SHIFTED = dict(zip('~!@#$%^&*()_+{}|:"<>?', "`1234567890-=[]\\;',./", strict=True))
_PUNCTUATION = {
    ";": ("Semicolon", 186),
    "=": ("Equal", 187),
    ",": ("Comma", 188),
    "-": ("Minus", 189),
    ".": ("Period", 190),
    "/": ("Slash", 191),
    "`": ("Backquote", 192),
    "[": ("BracketLeft", 219),
    "\\": ("Backslash", 220),
    "]": ("BracketRight", 221),
    "'": ("Quote", 222),
    " ": ("Space", 32),
}
"""Names of keys and their virtual key codes."""

_ENTER = {"key": "Enter", "code": "Enter", "windowsVirtualKeyCode": 13, "text": "\r"}
_NAMED = {"\n": _ENTER, "\r": _ENTER, "\t": {"key": "Tab", "code": "Tab", "windowsVirtualKeyCode": 9}}


def key_events(text: str) -> list[dict[str, Any]]:
    """Parameters of ``Input.dispatchKeyEvent``: each key goes down and up again."""
    events = []
    for character in text.replace("\r\n", "\n"):
        key = _NAMED.get(character) or _printed(character)
        events += [{"type": "keyDown", **key}, {"type": "keyUp", **{k: v for k, v in key.items() if k != "text"}}]
    return events


def _printed(character: str) -> dict[str, Any]:
    base = _SHIFTED.get(character, character.lower())
    key: dict[str, Any] = {"key": character, "text": character}
    if base in string.ascii_lowercase:
        key |= {"code": f"Key{base.upper()}", "windowsVirtualKeyCode": ord(base.upper())}
    elif base in string.digits:
        key |= {"code": f"Digit{base}", "windowsVirtualKeyCode": ord(base)}
    elif base in _PUNCTUATION:
        code, number = _PUNCTUATION[base]
        key |= {"code": code, "windowsVirtualKeyCode": number}
    if base != character and "code" in key:
        key["modifiers"] = _SHIFT
    return key
