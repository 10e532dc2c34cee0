"""From text to the shell commands that type it."""

from __future__ import annotations

import base64
import re
import shlex

from digirl_dist.errors import ActionError

ADB_KEYBOARD = "com.android.adbkeyboard"
"""The app ADBKeyboard (github.com/senzhk/ADBKeyBoard), an input method that types what it is sent by broadcast."""
ADB_KEYBOARD_IME = f"{ADB_KEYBOARD}/.AdbIME"

_KEYS = {"\n": "KEYCODE_ENTER", "\t": "KEYCODE_TAB"}
_PIECES = re.compile(r"[\n\t]|(?:%(?!s)|[^%\n\t])+%?|%")
"""Keys, and runs of text that hold no ``%s``: ``input text`` would read that as a space."""
_LONGEST = 500
"""Characters in one ``input text``, which types them one by one."""


def typing_commands(text: str) -> list[str]:
    """What types ``text`` with the device's own means. Raises ActionError for what these cannot type."""
    strange = sorted({char for char in text if not (" " <= char <= "~" or char in _KEYS)})
    if strange:
        shown = "".join(strange[:5])
        raise ActionError(
            f"{shown!r} cannot be typed with `input text`, which knows ASCII only; install the app ADBKeyboard in the "
            "image or on the device (emulator.adb_keyboard), which types any Unicode"
        )
    return [_command(piece) for run in _PIECES.findall(text) for piece in _split(run)]


def keyboard_commands(text: str) -> list[str]:
    """What types ``text`` through ADBKeyboard, whatever it holds."""
    encoded = base64.b64encode(text.encode("utf-8", "replace")).decode()
    return [f"am broadcast -a ADB_INPUT_B64 --es msg {encoded}"] if text else []


def _split(run: str) -> list[str]:
    return [run[start : start + _LONGEST] for start in range(0, len(run), _LONGEST)]


def _command(piece: str) -> str:
    if piece in _KEYS:
        return f"input keyevent {_KEYS[piece]}"
    return f"input text {shlex.quote(piece.replace(' ', '%s'))}"
