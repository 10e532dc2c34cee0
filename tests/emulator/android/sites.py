"""Places to run Android in: a device that runs already, and a machine with an SDK and an AVD."""

from __future__ import annotations

import asyncio
import os
import sys
import threading
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import TypeVar

from emulator.android import fake_emulator
from emulator.android.adbd import Adbd
from emulator.android.phone_shell import PhoneShell

from digirl_dist.child_process import environment
from digirl_dist.emulator.phone import layout
from digirl_dist.settings import AndroidSettings

T = TypeVar("T")
TESTS = Path(__file__).resolve().parents[2]


class RunningPhone:
    """A device whose adbd listens on this machine, in a thread of its own. Use as a context manager."""

    def __init__(self, shell: PhoneShell | None = None, mode: str = "device") -> None:
        self.shell = shell or PhoneShell()
        self.adbd = Adbd(self.shell, mode)
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, daemon=True)

    def __enter__(self) -> RunningPhone:
        self._thread.start()
        asyncio.run_coroutine_threadsafe(self.adbd.start(), self._loop).result(5)
        return self

    def __exit__(self, *exc: object) -> None:
        self.do(self.adbd.close)
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join(5)

    @property
    def serial(self) -> str:
        return f"127.0.0.1:{self.adbd.port}"

    def do(self, what: Callable[[], T]) -> T:
        """Call something in the device's thread."""

        async def call() -> T:
            return what()

        return asyncio.run_coroutine_threadsafe(call(), self._loop).result(5)


def quick(folder: Path, **values: object) -> AndroidSettings:
    """Settings for a device as quick as the demo phone: locks of its own."""
    chosen = {
        "image_size": [layout.HEIGHT, layout.WIDTH],
        "masked": [[0.0, 0.0, 1.0, 0.045]],
        "lock_path": str(folder / "locks"),
        "reset_commands": [],
        "first_port": 5600 + 8 * (os.getpid() % 8),
        **values,
    }
    return AndroidSettings(**chosen)  # type: ignore[arg-type]


@dataclass(frozen=True)
class Sdk:
    """An SDK whose emulator program is the fake one, and one AVD."""

    folder: Path
    content: Path
    """Of the AVD."""

    def settings(self, **values: object) -> AndroidSettings:
        places = {"sdk_path": str(self.folder / "sdk"), "avd_home": str(self.folder / "avd")}
        return quick(self.folder, **{"avd": "demo", "boot_s": 60.0, **places, **values})

    def events(self, kind: str) -> list[dict[str, object]]:
        return [event for event in fake_emulator.events(self.content) if event["event"] == kind]


def make_sdk(folder: Path, snapshots: tuple[str, ...] = ("digirl",), **behaviour: object) -> Sdk:
    program = folder / "sdk" / "emulator" / "emulator"
    program.parent.mkdir(parents=True)
    path = os.pathsep.join([str(TESTS), environment()["PYTHONPATH"]])
    program.write_text(
        f"#!/bin/sh\nPYTHONPATH='{path}' exec '{sys.executable}' -m emulator.android.fake_emulator \"$@\"\n"
    )
    program.chmod(0o755)
    return Sdk(folder, fake_emulator.make_avd(folder / "avd", "demo", behaviour, snapshots))
