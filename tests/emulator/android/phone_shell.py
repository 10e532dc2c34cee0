"""The shell of an Android device whose screen and apps are the demo phone's."""

from __future__ import annotations

import asyncio
import base64
import io
import itertools
import json
import shlex
import struct
import xml.etree.ElementTree as ET
from dataclasses import dataclass, field

import numpy as np
from emulator.android.adbd import Send
from PIL import Image

from digirl_dist.emulator.phone import layout
from digirl_dist.emulator.phone.apps import Button, Field, Line, Switch, app_named
from digirl_dist.emulator.phone.screen import Screen
from digirl_dist.emulator.phone.state import PhoneState
from digirl_dist.emulator.phone.tasks import goal_reached, make_unreached
from digirl_dist.emulator.touch_actions import DeviceAction
from digirl_dist.tasks import Task

ADB_KEYBOARD = "com.android.adbkeyboard"
KEYS = {
    "KEYCODE_BACK": "back",
    "KEYCODE_HOME": "home",
    "KEYCODE_ENTER": "enter",
    "4": "back",
    "3": "home",
    "66": "enter",
}
FINISHED_FILM = b"\0\0\0\x18ftypmp42 film and its index"


def as_android(task: Task) -> Task:
    """A task of the demo phone for a device whose screen is that phone: set up and judged by shell commands."""
    goal = shlex.quote(json.dumps(task.params))
    setup = f"am broadcast -a demo.RESET --ei seed {{seed}} --es goal {goal}"
    return Task(
        task.id, task.instruction, {"setup": [setup], "check": {"command": "dumpsys demo", "matches": "goal=true"}}
    )


@dataclass
class PhoneShell:
    """Runs commands as ``sh`` on the device would. What may be changed to make it behave badly:"""

    booted: bool = True
    mute: bool = False
    """No command is ever answered."""
    adb_keyboard: bool = False
    restless: int = 0
    """So many pictures after each touch show a screen that still moves; -1: it never rests."""
    blinking: bool = False
    """Something in the status bar differs in each picture."""
    header: int = 16
    """Bytes before the pixels of a raw picture: 12 up to Android 8, 16 since."""

    files: dict[str, bytes] = field(default_factory=dict)
    history: list[str] = field(default_factory=list)
    """Every command line that was run."""
    settings: dict[str, str] = field(default_factory=dict)
    state: PhoneState = field(default_factory=lambda: PhoneState.fresh(0, shuffle_icons=False))
    goal: dict[str, object] = field(default_factory=dict)
    typed: list[str] = field(default_factory=list)
    apps: list[str] = field(default_factory=list)
    """``start PACKAGE`` and ``stop PACKAGE``."""

    def __post_init__(self) -> None:
        self._screen = Screen()
        self._pictures = itertools.count(1)
        self._moving = 0
        self._input_method = "com.android.latin/.LatinIME"
        self._film: asyncio.Event | None = None

    async def run(self, command: str, out: Send, err: Send) -> int:
        self.history.append(command)
        if self.mute:
            await asyncio.sleep(3600)
        status = 0
        for words, skip_unless in _commands(command):
            if skip_unless is not None and (status == 0) != skip_unless:
                continue
            words = [word.replace("$?", str(status)) for word in words]
            program = getattr(self, f"_{words[0]}", None)
            if program is None:
                await err(f"/system/bin/sh: {words[0]}: inaccessible or not found\n".encode())
                status = 127
            else:
                status = await program(words[1:], out) or 0
        return status

    def perform(self, action: DeviceAction) -> None:
        self.state.perform(action)
        self._moving = self.restless

    def open_goal(self) -> None:
        """As if somebody else had opened the app that is asked for."""
        self.state.open(app_named(str(self.goal["app"])))

    def snapshot(self) -> None:
        """Back to a phone that nobody has touched."""
        self.state, self.goal = PhoneState.fresh(0, shuffle_icons=False), {}
        self.settings.clear()

    # --- programs ------------------------------------------------------------------------------------------------

    async def _input(self, words: list[str], out: Send) -> None:
        kind, rest = words[0], words[1:]
        if kind in ("tap", "swipe"):
            shares = [
                (int(word) + 0.5) / size for word, size in zip(rest, (layout.WIDTH, layout.HEIGHT) * 2, strict=False)
            ]
            self.perform(DeviceAction(kind, *shares))
        elif kind == "keyevent" and rest[0] in KEYS:
            self.perform(DeviceAction(KEYS[rest[0]]))
        elif kind == "text":
            assert rest[0].isascii(), "Android's input text dies of a NullPointerException here"
            self._type(_as_input_text_reads(rest[0]))

    def _type(self, text: str) -> None:
        self.typed.append(text)
        self.perform(DeviceAction("type", text=text))

    async def _screencap(self, words: list[str], out: Send) -> None:
        png = self._screen.draw(self.state)
        if not self.blinking and not self._moving and words == ["-p"]:
            await out(png)
            return
        image = Image.open(io.BytesIO(png)).convert("RGBA")
        self._disturb(image)
        if words == ["-p"]:
            buffer = io.BytesIO()
            image.save(buffer, "png")
            await out(buffer.getvalue())
        else:
            header = struct.pack("<IIII", image.width, image.height, 1, 2)[: self.header]
            await out(header + np.asarray(image).tobytes())

    def _disturb(self, image: Image.Image) -> None:
        count = next(self._pictures)
        shade = (count % 251, 40, 90, 255)
        if self.blinking:
            image.paste(shade, (4, 3, 20, 10))
        if self._moving:
            self._moving -= 1
            image.paste(shade, (40, 150, 90, 200))

    async def _am(self, words: list[str], out: Send) -> None:
        named = {words[at + 1]: words[at + 2] for at, word in enumerate(words) if word in ("--es", "--ei")}
        broadcast = words[2] if words[:2] == ["broadcast", "-a"] else ""
        if words[0] == "force-stop":
            self.apps.append(f"stop {words[1]}")
        elif broadcast == "demo.RESET":
            self.goal = json.loads(named["goal"])
            self.state = PhoneState.fresh(int(named["seed"]), shuffle_icons=False)
            make_unreached(self.goal, self.state)
        elif broadcast == "ADB_INPUT_B64" and self._input_method.startswith(ADB_KEYBOARD):
            self._type(base64.b64decode(named["msg"]).decode())

    async def _monkey(self, words: list[str], out: Send) -> None:
        self.apps.append(f"start {words[1]}")

    async def _dumpsys(self, words: list[str], out: Send) -> None:
        await out(f"goal={'true' if goal_reached(self.goal, self.state) else 'false'}\n".encode())

    async def _getprop(self, words: list[str], out: Send) -> None:
        known = {"sys.boot_completed": "1" if self.booted else "", "ro.build.version.release": "demo"}
        await out(known.get(words[0], "").encode() + b"\n")

    async def _settings(self, words: list[str], out: Send) -> None:
        if words[0] == "put":
            self.settings[f"{words[1]} {words[2]}"] = words[3]
        else:
            await out(self.settings.get(f"{words[1]} {words[2]}", "null").encode() + b"\n")

    async def _pm(self, words: list[str], out: Send) -> None:
        packages = ["com.android.settings", *([ADB_KEYBOARD] if self.adb_keyboard else [])]
        await out("".join(f"package:{name}\n" for name in packages if words[2] in name).encode())

    async def _ime(self, words: list[str], out: Send) -> None:
        if words[0] == "set":
            self._input_method = words[1]

    async def _echo(self, words: list[str], out: Send) -> None:
        await out(" ".join(words).encode() + b"\n")

    async def _false(self, words: list[str], out: Send) -> int:
        return 1

    async def _true(self, words: list[str], out: Send) -> int:
        return 0

    async def _sleep(self, words: list[str], out: Send) -> None:
        await asyncio.sleep(float(words[0]))

    async def _uiautomator(self, words: list[str], out: Send) -> int:
        if self.restless < 0:
            await out(b"ERROR: could not get idle state.\n")
            return 1
        self.files[words[1]] = _window(self.state)
        return 0

    async def _cat(self, words: list[str], out: Send) -> None:
        await out(self.files.get(words[0], b""))

    async def _rm(self, words: list[str], out: Send) -> None:
        self.files.pop(words[-1], None)

    async def _screenrecord(self, words: list[str], out: Send) -> None:
        """Writes on and on; only when it is interrupted does the file become one that can be played."""
        self.files[words[-1]] = FINISHED_FILM[:8]
        self._film = asyncio.Event()
        await self._film.wait()
        self.files[words[-1]] = FINISHED_FILM

    async def _pkill(self, words: list[str], out: Send) -> int:
        if self._film is None or words != ["-INT", "screenrecord"]:
            return 1
        self._film.set()
        self._film = None
        return 0


def _window(state: PhoneState) -> bytes:
    """The elements of the phone's screen as ``uiautomator`` would tell them."""
    root = ET.Element("hierarchy", rotation="0")
    icons = [] if state.app else [(name, layout.icon_touch_rect(at)) for at, name in enumerate(state.icons_on_page())]
    for name, rect in icons:
        _node(root, "android.widget.TextView", rect, text=name, clickable="true")
    for widget, rect in state.rows():
        match widget:
            case Switch(name):
                row = _node(root, "android.widget.LinearLayout", rect, clickable="true")
                _node(row, "android.widget.TextView", rect, text=name)
                _node(row, "androidx.appcompat.widget.SwitchCompat", rect._replace(left=rect.right - 40))
            case Button(name):
                _node(root, "android.widget.ImageButton", rect, **{"content-desc": name})
            case Field(hint):
                _node(root, "android.widget.EditText", rect, hint=hint, text=state.typed)
            case Line(text):
                _node(root, "android.widget.TextView", rect, text=text)
    return ET.tostring(root, encoding="UTF-8", xml_declaration=True)


def _node(parent: ET.Element, kind: str, rect: layout.Rect, **said: str) -> ET.Element:
    bounds = f"[{rect.left},{rect.top}][{rect.right},{rect.bottom}]"
    return ET.SubElement(parent, "node", {"class": kind, "bounds": bounds, **said})


def _commands(line: str) -> list[tuple[list[str], bool | None]]:
    """The commands of a line, and the status of the one before on which they depend: ``&&`` True, ``||`` False."""
    lexer = shlex.shlex(line, posix=True, punctuation_chars=";&|")
    lexer.whitespace_split = True
    lexer.commenters = ""
    found: list[tuple[list[str], bool | None]] = []
    words: list[str] = []
    depends: bool | None = None
    for token in [*lexer, ";"]:
        if token in (";", "&&", "||"):
            if words:
                found.append((words, depends))
            words, depends = [], {"&&": True, "||": False}.get(token)
        else:
            words.append(token)
    return found


def _as_input_text_reads(text: str) -> str:
    """AOSP's InputShellCommand.sendText: a percent sign followed by s is a space."""
    read: list[str] = []
    for char in text:
        if char == "s" and read and read[-1] == "%":
            read[-1] = " "
        else:
            read.append(char)
    return "".join(read)
