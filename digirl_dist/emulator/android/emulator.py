"""Android behind the Emulator seam."""

from __future__ import annotations

import itertools
import logging
import re
import time
from collections.abc import Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import TYPE_CHECKING

from digirl_dist.emulator import Label
from digirl_dist.emulator.android import screen
from digirl_dist.emulator.android.adb import AdbServer, adb_client, adb_errors, find_adb, started_server
from digirl_dist.emulator.android.adb_device import AndroidDevice
from digirl_dist.emulator.android.avd import find_avd, find_sdk
from digirl_dist.emulator.android.locks import Locks, claim_ports, claim_serial
from digirl_dist.emulator.android.options import AndroidOptions
from digirl_dist.emulator.android.source import AttachedDevice, AvdInstance, Source
from digirl_dist.emulator.touch_actions import DeviceAction
from digirl_dist.errors import EmulatorError, SettingsError
from digirl_dist.tasks import Task
from digirl_dist.trajectory import Observation, Transition
from digirl_dist.types import Json

if TYPE_CHECKING:
    from adbutils import AdbConnection

SETTLE_GAP_S = 0.2
"""The screen has settled when two pictures, at least so many seconds apart, are equal outside the mask."""


class AndroidEmulator:
    """Fulfils ``Emulator``.

    ``Observation.text`` is the task's instruction, ``image`` the settled screen, scaled to ``image_size``. A task's
    ``params`` may say ``setup`` (shell commands at the start of the episode; ``{seed}`` stands for its seed), ``app``
    (a package that is started afresh) and ``check`` (``{"command": …, "matches": …}``: after each step, and at
    ``done``, what the command prints is searched for the regular expression; found, the episode ends as a success
    with reward 1.0). Without a check only a judge can say what came of it.
    """

    def __init__(self, settings: AndroidOptions) -> None:
        """Starts the instance, or attaches to the device. Raises SettingsError or EmulatorError with the remedy."""
        self._settings = settings
        self._task: Task | None = None
        self._fresh = True
        self._last = Observation()
        with ExitStack() as stack:
            locks = Locks(settings.lock_path)
            stack.callback(locks.release_all)
            self._source, self._server = _open(settings, locks, stack)
            self.device = AndroidDevice(self._server, self._source.serial, self._source.near)
            self._recorder = (
                Recorder(self.device, Path(settings.record_path).expanduser()) if settings.record_path else None
            )
            self._open = stack.pop_all()

    def reset(self, task: Task, seed: int) -> Observation:
        self._stop_recording()
        if not self._fresh:
            self._source.renew()
        self._fresh, self._task = False, None
        self.device.use_keyboard(self._settings.adb_keyboard)
        self.device.perform(DeviceAction("home"))
        self._run_commands(self._settings.reset_commands, seed)
        self._task = self._prepare(task, seed)
        if self._recorder is not None:
            self._recorder.start(f"{task.id}-{seed}")
        return self._look(self._task)

    def step(self, action: Json) -> Transition:
        """Raises ActionError for what is no device action or cannot be typed, EmulatorError before the first reset."""
        if self._task is None:
            raise EmulatorError("this Android device was not given a task; call reset first")
        wanted = DeviceAction.from_json(action)
        if wanted.ends:
            seen = self._last
        else:
            self.device.perform(wanted)
            seen = self._look(self._task)
        reward, over = self._judged(self._task, wanted)
        if over:
            self._stop_recording()
        return Transition(seen, reward, terminated=over, success=reward >= 1.0)

    def labels(self) -> list[Label]:
        """Returns what the screen shows by name, if that is wanted."""
        return self.device.labels() if self._settings.labels else []

    def close(self) -> None:
        self._stop_recording()
        self._task = None
        self._open.close()

    def _look(self, task: Task) -> Observation:
        settings = self._settings
        frame = screen.settled(self.device.frame, settings.masked, SETTLE_GAP_S, settings.settle_s)
        height, width = settings.image_size
        self._last = Observation(task.instruction, screen.encode(frame, (height, width), settings.jpeg_quality))
        return self._last

    def _prepare(self, task: Task, seed: int) -> Task:
        """Brings the device to where the task begins; returns the task as the agent is told it."""
        self._run_commands(task.params.get("setup", ()), seed)
        if app := task.params.get("app"):
            self.device.restart_app(app)
        return task

    def _judged(self, task: Task, wanted: DeviceAction) -> tuple[float, bool]:
        """Returns the reward of an action that was carried out, and whether the episode is over."""
        success = wanted.type != "impossible" and self._reached(task)
        return float(success), success or wanted.ends

    def _reached(self, task: Task) -> bool:
        check = task.params.get("check")
        return check is not None and re.search(check["matches"], self.device.shell(check["command"])) is not None

    def _run_commands(self, commands: Sequence[str], seed: int) -> None:
        for command in commands:
            self.device.shell(command.replace("{seed}", str(seed)))

    def _stop_recording(self) -> None:
        if self._recorder is not None:
            self._recorder.stop()


def _open(settings: AndroidOptions, locks: Locks, stack: ExitStack) -> tuple[Source, AdbServer]:
    """A device that works, with the adb server that shows it; ``stack`` ends both."""
    ports = claim_ports(locks, settings.first_port)
    if settings.avd is not None:
        avd = find_avd(settings)
        server = _own_server(settings, ports.console, locks, stack)
        source: Source = AvdInstance(settings, avd, ports, server, locks)
    else:
        serial = claim_serial(locks, settings.serials)
        server = _given_server(settings.adb_server) or _own_server(settings, ports.console, locks, stack)
        source = AttachedDevice(settings, serial, server)
    stack.callback(source.stop)
    source.start()
    return source, server


def _own_server(settings: AndroidOptions, console: int, locks: Locks, stack: ExitStack) -> AdbServer:
    server = started_server(find_adb(find_sdk(settings)), locks.folder, console)
    stack.callback(server.close)
    return server


def _given_server(address: str | None) -> AdbServer | None:
    if address is None:
        return None
    host, _, port = address.rpartition(":")
    if not host or not port.isdecimal():
        raise SettingsError(f"emulator.adb_server={address} is not of the form host:port, as 127.0.0.1:5037")
    server = AdbServer(adb_client().TcpAddress(host, int(port)))
    server.require()
    return server


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
