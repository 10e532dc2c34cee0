"""The shell of a device with storage, settings and packages of its own: as much of Android as AndroidWorld's tasks need
that work on files, settings and databases. Its screen and apps are the demo phone's.

Files are those of a folder here, and ``ls``, ``cp``, ``find`` and the like are this machine's, which differ from
Android's in words of errors. No app of AndroidWorld's runs: ``am`` takes what it is told and does nothing more.
"""

from __future__ import annotations

import asyncio
import os
import re
import shlex
import shutil
from collections.abc import Iterator, MutableMapping
from dataclasses import dataclass, field
from pathlib import Path

from emulator.android.adbd import Send
from emulator.android.phone_shell import PhoneShell

USER = "storage/emulated/0"
TOP = (
    *(f"{USER}/{name}" for name in ("DCIM", "Documents/Markor", "Download", "Movies", "Music", "Pictures")),
    f"{USER}/Android/data/com.dimowner.audiorecorder/files/Music/records",
    f"{USER}/Android/data/net.osmand/files/tracks",
    "data/data",
    "data/local/tmp",
)
"""Folders that are there before any task."""
OURS = {
    "ls",
    "cp",
    "mv",
    "rm",
    "cat",
    "find",
    "mkdir",
    "chmod",
    "touch",
    "test",
    "stat",
    "date",
    "grep",
    "[",
    "if",
    "echo",
    "sqlite3",
}


class Storage(MutableMapping[str, bytes]):
    """The files below a folder, by their paths on the device."""

    def __init__(self, root: Path) -> None:
        self.root = root
        for name in TOP:
            (root / name).mkdir(parents=True, exist_ok=True)
        (root / "data/media").mkdir(exist_ok=True)
        for other in ("sdcard", "data/media/0"):
            (root / other).symlink_to(root / USER)

    def place(self, path: str) -> Path:
        return self.root / path.lstrip("/")

    def __getitem__(self, path: str) -> bytes:
        try:
            return self.place(path).read_bytes()
        except OSError as error:
            raise KeyError(path) from error

    def __setitem__(self, path: str, content: bytes) -> None:
        self.place(path).parent.mkdir(parents=True, exist_ok=True)
        self.place(path).write_bytes(content)

    def __delitem__(self, path: str) -> None:
        self.place(path).unlink()

    def __iter__(self) -> Iterator[str]:
        return (f"/{each.relative_to(self.root)}" for each in sorted(self.root.rglob("*")))

    def __len__(self) -> int:
        return sum(1 for _ in self)


@dataclass
class AndroidShell(PhoneShell):
    """``storage`` holds its files; ``packages`` are installed."""

    packages: list[str] = field(default_factory=lambda: ["com.android.settings"])
    activity: str = "com.android.launcher3/.Launcher"
    """What ``dumpsys`` calls the activity in front."""
    window: str = '<?xml version="1.0" ?><hierarchy rotation="0"></hierarchy>'
    """What ``uiautomator`` tells of the screen."""
    clipboard: str = ""
    unknown: list[str] = field(default_factory=list)
    """Commands that no program here took."""

    async def run(self, command: str, out: Send, err: Send) -> int:
        self.history.append(command)
        words = command.split()
        name = words[0] if words else "true"
        if name == "rm" and "uiautomator dump" in command:
            await out(self.window.encode())
            return 0
        known = getattr(self, f"_android_{name}", None)
        if known is not None:
            return await known(words[1:], command, out) or 0
        if name in OURS:
            return await self._by_sh(command, out, err)
        if getattr(self, f"_{name}", None) is None:
            self.unknown.append(command)
        self.history.pop()
        return await super().run(command, out, err)

    async def _by_sh(self, command: str, out: Send, err: Send) -> int:
        root = str(self.files.root)
        there = re.sub(r"(?<![\w.])/(?=(?:sdcard|storage/|data/))", f"{root}/", command)
        process = await asyncio.create_subprocess_exec(
            "sh",
            "-c",
            there,
            env={**os.environ, "TIME_STYLE": "full-iso"},
            stdin=asyncio.subprocess.DEVNULL,
            stdout=asyncio.subprocess.PIPE,
            stderr=asyncio.subprocess.PIPE,
        )
        said, wrong = await process.communicate()
        for send, text in ((out, said), (err, wrong)):
            if text:
                await send(text.replace(root.encode(), b""))
        return process.returncode or 0

    async def _android_whoami(self, words: list[str], command: str, out: Send) -> None:
        await out(b"root\n")

    async def _android_settings(self, words: list[str], command: str, out: Send) -> None:
        if words[0] == "put":
            self.settings[f"{words[1]} {words[2]}"] = " ".join(words[3:]).strip("'\"")
        elif words[0] == "get":
            await out(self.settings.get(f"{words[1]} {words[2]}", "null").encode() + b"\n")
        elif words[0] == "list":
            told = "".join(
                f"{key.split()[1]}={value}\n" for key, value in self.settings.items() if key.split()[0] == words[1]
            )
            await out(told.encode())

    async def _android_pm(self, words: list[str], command: str, out: Send) -> None:
        if words[:2] == ["list", "packages"]:
            wanted = words[-1] if len(words) > 2 else ""
            await out("".join(f"package:{name}\n" for name in self.packages if wanted in name).encode())
        elif words[0] == "clear":
            shutil.rmtree(self.files.place(f"/data/data/{words[1]}"), ignore_errors=True)
            await out(b"Success\n")

    async def _android_svc(self, words: list[str], command: str, out: Send) -> None:
        names = {"wifi": "global wifi_on", "bluetooth": "global bluetooth_on"}
        if words[0] in names:
            self.settings[names[words[0]]] = "1" if words[1] == "enable" else "0"

    async def _android_dumpsys(self, words: list[str], command: str, out: Send) -> int:
        if "activity" in words:
            await out(f"taskId=1: {self.activity} visible=true topActivity=ComponentInfo{{{self.activity}}}\n".encode())
        return 0

    async def _android_date(self, words: list[str], command: str, out: Send) -> None:
        told = {"": "Sun Oct 15 15:34:00 UTC 2023", "+%s": "1697384040"}.get(" ".join(words), "")
        await out(f"{told}\n".encode())

    async def _android_am(self, words: list[str], command: str, out: Send) -> None:
        if words[:2] == ["stack", "list"]:
            await out(f"taskId=1: {self.activity} visible=true topActivity=ComponentInfo{{{self.activity}}}\n".encode())
        else:
            self.apps.append(command)
            await self._broadcast(words, command, out)

    async def _broadcast(self, words: list[str], command: str, out: Send) -> None:
        if "clipper.set" in command:
            self.clipboard = shlex.split(command)[-1]
        told = f'Broadcast completed: result=-1, data="{self.clipboard}"' if words[0] == "broadcast" else "Status: ok"
        await out(f"{told}\n".encode())

    async def _nothing(self, words: list[str], command: str, out: Send) -> None:
        pass

    async def _android_content(self, words: list[str], command: str, out: Send) -> None:
        await out(b"No result found.\n")

    _android_monkey = _android_restorecon = _android_wm = _android_cmd = _android_service = _nothing
