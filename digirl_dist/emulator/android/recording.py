"""Films of episodes, made by the device's own ``screenrecord`` and pulled when they end."""

from __future__ import annotations

import itertools
import logging
import re
import time
from pathlib import Path
from typing import TYPE_CHECKING

from digirl_dist.emulator.android.adb import adb_errors
from digirl_dist.emulator.android.adb_device import AndroidDevice
from digirl_dist.errors import EmulatorError

if TYPE_CHECKING:
    from adbutils import AdbConnection

_ON_DEVICE = "/sdcard/digirl-episode.mp4"
_FINISH_LIMIT_S = 10.0


class Recorder:
    """One film at a time. A film that fails is told of in the log and costs no episode."""

    def __init__(self, device: AndroidDevice, folder: Path) -> None:
        self._device, self._folder = device, folder
        self._running: AdbConnection | None = None
        self._name = ""
        self._films = itertools.count()

    def start(self, name: str) -> None:
        """Begins a film of that name and the time; raises EmulatorError if the device cannot record.

        A task and a seed have many episodes: of a group, of retries, of each pass through the tasks.
        """
        begun = time.strftime("%Y%m%d-%H%M%S")
        self._name = re.sub(r"[^\w.-]+", "-", f"{name}-{self._device.serial}-{begun}-{next(self._films)}")
        self._folder.mkdir(parents=True, exist_ok=True)
        self._running = self._device.open_shell(f"rm -f {_ON_DEVICE}; screenrecord {_ON_DEVICE}")

    def stop(self) -> None:
        """End the film and fetch it. A second call is harmless."""
        running, self._running = self._running, None
        if running is None:
            return
        try:
            with running:
                # On SIGINT screenrecord writes the index without which no player reads the file, and ends.
                self._device.shell("pkill -INT screenrecord || true")
                self._wait(running)
            self._device.pull(_ON_DEVICE, self._folder / f"{self._name}.mp4")
        except (EmulatorError, OSError) as error:
            logging.getLogger(__name__).warning("no film of %s: %s", self._name, error)

    def _wait(self, running: AdbConnection) -> None:
        deadline = time.monotonic() + _FINISH_LIMIT_S
        with adb_errors(self._device.serial, "finish its film"):
            running.conn.settimeout(_FINISH_LIMIT_S)
            while running.conn.recv(1 << 16):
                if time.monotonic() > deadline:
                    raise EmulatorError(f"{self._device.serial}: screenrecord does not end")
