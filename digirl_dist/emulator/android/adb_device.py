"""One Android device over adb: what is on its screen, and what a finger or a key does."""

from __future__ import annotations

import base64
import math
import re
import shlex
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from digirl_dist.emulator import Label
from digirl_dist.emulator.android import screen
from digirl_dist.emulator.android.adb import AdbServer, adb_errors
from digirl_dist.emulator.touch_actions import DeviceAction
from digirl_dist.errors import ActionError, EmulatorError

if TYPE_CHECKING:
    from adbutils import AdbConnection

TAP_DISTANCE = 0.04
"""A swipe no longer than this share of the screen is a tap, the rule of AndroidInTheWild (README, action matching)."""

COMMAND_S = 20.0
"""Longest answer to one adb command, in seconds."""
_SWIPE_MS, _LONG_PRESS_MS = 300, 1000
_KEYS = {"back": "KEYCODE_BACK", "home": "KEYCODE_HOME", "enter": "KEYCODE_ENTER"}


class AndroidDevice:
    """A device that adb shows as ``device``. Every command has a limit; what fails raises EmulatorError."""

    def __init__(self, server: AdbServer, serial: str, near: bool) -> None:
        """``near``: it runs on this machine, where raw pictures travel faster than the device can pack them."""
        self.serial = serial
        self._device = server.device(serial)
        self._near = near
        self._size: tuple[int, int] | None = None
        self._types = typing_commands

    def shell(self, command: str) -> str:
        """What it prints. Raises EmulatorError when it fails, says so by its status, or takes too long."""
        with adb_errors(self.serial, f"run `{_short(command)}`"):
            done = self._device.shell2(command, timeout=COMMAND_S, v2=True)
        if done.returncode != 0:
            last = " ".join(done.output.split())[-200:]
            raise EmulatorError(f"{self.serial}: `{_short(command)}` ended with status {done.returncode}: {last}")
        return str(done.output).strip()

    def open_shell(self, command: str) -> AdbConnection:
        """Run a command and let it run; its output, and its end, come over the connection."""
        with adb_errors(self.serial, f"start `{_short(command)}`"):
            return self._device.open_shell(command)

    def execute(self, command: str) -> bytes:
        """What it writes, byte by byte, as ``adb exec-out`` does."""
        with adb_errors(self.serial, f"run `{_short(command)}`"), self._device.open_transport() as link:
            link.conn.settimeout(COMMAND_S)
            link.send_command(f"exec:{command}")
            link.check_okay()
            parts = []
            while part := link.conn.recv(1 << 20):
                parts.append(part)
            return b"".join(parts)

    def frame(self) -> np.ndarray:
        """The screen: uint8, shape [height, width, 3]."""
        taken = (
            screen.read_raw(self.execute("screencap")) if self._near else screen.read_png(self.execute("screencap -p"))
        )
        self._size = taken.shape[1], taken.shape[0]
        return taken

    def window(self) -> str:
        """What ``uiautomator`` tells of the screen: XML, or why it tells nothing."""
        return self.execute(screen.DUMP).decode(errors="replace")

    def labels(self) -> list[Label]:
        """Returns what is on the screen by name; nothing of a screen that never rests. Raises EmulatorError."""
        width, height = self._screen_size()
        said = self.window()
        if screen.is_dump(said):
            return screen.labels_of(said, width, height)
        if "could not get idle state" in said:  # the screen did not come to rest
            return []
        told = " ".join(said.split())[:200]
        raise EmulatorError(
            f"{self.serial}: uiautomator does not tell what is on the screen: {told!r}; set emulator.labels=false"
        )

    def perform(self, action: DeviceAction) -> None:
        """Carry out what touches the device. Raises ActionError for text that cannot be typed."""
        match action.type:
            case "tap":
                self._tap(action.x, action.y)
            case "swipe" if math.hypot(action.to_x - action.x, action.to_y - action.y) <= TAP_DISTANCE:
                self._tap(action.x, action.y)
            case "swipe":
                ends = *self._pixel(action.x, action.y), *self._pixel(action.to_x, action.to_y)
                self.shell(f"input swipe {' '.join(map(str, ends))} {_SWIPE_MS}")
            case "drag":
                ends = *self._pixel(action.x, action.y), *self._pixel(action.to_x, action.to_y)
                self.shell(f"input draganddrop {' '.join(map(str, ends))} {_LONG_PRESS_MS}")
            case "select":
                at = *self._pixel(action.x, action.y), *self._pixel(action.x, action.y)
                self.shell(f"input swipe {' '.join(map(str, at))} {_LONG_PRESS_MS}")
            case "type":
                for command in self._types(action.text):
                    self.shell(command)
            case "back" | "home" | "enter":
                self.shell(f"input keyevent {_KEYS[action.type]}")

    def use_keyboard(self, wanted: bool | None) -> None:
        """Type through ADBKeyboard: True, never: False, if it is there: None. Raises EmulatorError if it is missing."""
        installed = wanted is not False and self.installed(ADB_KEYBOARD)
        if wanted and not installed:
            raise EmulatorError(
                f"{self.serial}: ADBKeyboard is not installed; run `adb install ADBKeyboard.apk`, "
                "or set emulator.adb_keyboard=null"
            )
        if installed:
            self.shell(f"ime enable {ADB_KEYBOARD_IME}; ime set {ADB_KEYBOARD_IME}")
        self._types = keyboard_commands if installed else typing_commands

    def installed(self, package: str) -> bool:
        return f"package:{package}" in self.shell(f"pm list packages {shlex.quote(package)}").split()

    def restart_app(self, package: str) -> None:
        """Ends an app and opens it as its icon does."""
        self.shell(f"am force-stop {shlex.quote(package)}")
        self.shell(f"monkey -p {shlex.quote(package)} -c android.intent.category.LAUNCHER 1")

    def property(self, name: str) -> str:
        return self.shell(f"getprop {shlex.quote(name)}")

    def pull(self, path: str, to: Path) -> None:
        """Copy a file of the device; the name ``to`` appears when it is whole."""
        part = to.with_name(to.name + ".part")
        with adb_errors(self.serial, f"pull {path}"):
            self._device.sync.pull_file(path, part)
        part.replace(to)

    def _tap(self, x: float, y: float) -> None:
        column, row = self._pixel(x, y)
        self.shell(f"input tap {column} {row}")

    def _pixel(self, x: float, y: float) -> tuple[int, int]:
        """The pixel under a point in shares; the screen may have been turned since, so it counts as last seen."""
        width, height = self._screen_size()
        return min(int(x * width), width - 1), min(int(y * height), height - 1)

    def _screen_size(self) -> tuple[int, int]:
        """Width and height in pixels, as last seen."""
        if self._size is None:
            self.frame()
        assert self._size is not None
        return self._size


def _short(command: str) -> str:
    """For messages: typed text may be long."""
    return command if len(command) <= 120 else command[:117] + "…"


ADB_KEYBOARD = "com.android.adbkeyboard"
"""The app ADBKeyboard (github.com/senzhk/ADBKeyBoard), an input method that types what it is sent by broadcast."""
ADB_KEYBOARD_IME = f"{ADB_KEYBOARD}/.AdbIME"

_TYPED_KEYS = {"\n": "KEYCODE_ENTER", "\t": "KEYCODE_TAB"}
_PIECES = re.compile(r"[\n\t]|(?:%(?!s)|[^%\n\t])+%?|%")
"""Keys, and runs of text that hold no ``%s``: ``input text`` would read that as a space."""
_LONGEST = 500
"""Characters in one ``input text``, which types them one by one."""


def typing_commands(text: str) -> list[str]:
    """Returns the commands that type ``text`` without a keyboard app. Raises ActionError for other than ASCII."""
    strange = sorted({char for char in text if not (" " <= char <= "~" or char in _TYPED_KEYS)})
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
    if piece in _TYPED_KEYS:
        return f"input keyevent {_TYPED_KEYS[piece]}"
    return f"input text {shlex.quote(piece.replace(' ', '%s'))}"
