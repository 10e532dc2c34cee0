"""Android behind the Emulator seam."""

from __future__ import annotations

import re
from collections.abc import Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import Protocol

from digirl_dist.emulator import Label
from digirl_dist.emulator.android import frames
from digirl_dist.emulator.android.adb import AdbServer, adb_client, adb_command, find_adb, started_server
from digirl_dist.emulator.android.adb_device import AndroidDevice
from digirl_dist.emulator.android.attached import AttachedDevice, claim_serial
from digirl_dist.emulator.android.avd import find_avd, find_sdk
from digirl_dist.emulator.android.instance import AvdInstance
from digirl_dist.emulator.android.locks import Locks
from digirl_dist.emulator.android.options import AndroidOptions
from digirl_dist.emulator.android.ports import claim_ports
from digirl_dist.emulator.android.recording import Recorder
from digirl_dist.emulator.touch_actions import DeviceAction
from digirl_dist.errors import EmulatorError, SettingsError
from digirl_dist.tasks import Task
from digirl_dist.trajectory import Observation, Transition
from digirl_dist.types import Json


class Source(Protocol):
    """Where the device comes from."""

    serial: str
    near: bool
    """Whether it runs on this machine."""

    def start(self) -> None: ...

    def renew(self) -> None:
        """Bring it back to where episodes start."""

    def wait(self, limit_s: float) -> None:
        """Until it can be used, after its adbd was restarted. Raises EmulatorError."""

    def stop(self) -> None: ...


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
        self._mask = frames.Mask(settings.masked)
        self._task: Task | None = None
        self._fresh = True
        self._last = Observation()
        with ExitStack() as stack:
            locks = Locks(settings.lock_path)
            stack.callback(locks.release_all)
            self._source, self._server = _open(settings, locks, stack)
            self._device = AndroidDevice(self._server, self._source.serial, settings.command_s, self._source.near)
            self._recorder = (
                Recorder(self._device, Path(settings.record_path).expanduser()) if settings.record_path else None
            )
            self._open = stack.pop_all()

    @property
    def device(self) -> AndroidDevice:
        return self._device

    def reset(self, task: Task, seed: int) -> Observation:
        self._stop_recording()
        if not self._fresh:
            self._source.renew()
        self._fresh, self._task = False, None
        self._device.use_keyboard(self._settings.adb_keyboard)
        self._device.perform(DeviceAction("home"))
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
            self._device.perform(wanted)
            seen = self._look(self._task)
        reward, over = self._judged(self._task, wanted)
        if over:
            self._stop_recording()
        return Transition(seen, reward, terminated=over, success=reward >= 1.0)

    def labels(self) -> list[Label]:
        """Returns what the screen shows by name, if that is wanted."""
        return self._device.labels() if self._settings.labels else []

    def close(self) -> None:
        self._stop_recording()
        self._task = None
        self._open.close()

    def _look(self, task: Task) -> Observation:
        settings = self._settings
        frame = frames.settled(self._device.frame, self._mask, settings.settle_gap_s, settings.settle_s)
        height, width = settings.image_size
        image = frames.encode(frame, (height, width), settings.jpeg_quality)
        self._last = Observation(task.instruction, image)
        return self._last

    def _prepare(self, task: Task, seed: int) -> Task:
        """Brings the device to where the task begins; returns the task as the agent is told it."""
        self._run_commands(task.params.get("setup", ()), seed)
        if app := task.params.get("app"):
            self._device.stop_app(app)
            self._device.start_app(app)
        return task

    def _judged(self, task: Task, wanted: DeviceAction) -> tuple[float, bool]:
        """Returns the reward of an action that was carried out, and whether the episode is over."""
        success = wanted.type != "impossible" and self._reached(task)
        return float(success), success or wanted.ends

    def _reached(self, task: Task) -> bool:
        check = task.params.get("check")
        return check is not None and re.search(check["matches"], self._device.shell(check["command"])) is not None

    def _run_commands(self, commands: Sequence[str], seed: int) -> None:
        for command in commands:
            self._device.shell(command.replace("{seed}", str(seed)))

    def _adb_command(self) -> tuple[list[str], Path | None]:
        """Returns the adb program with its server and device, and the folder in which it is to be run."""
        return adb_command(find_adb(find_sdk(self._settings)), self._server, self._device.serial)

    def _wait_for_device(self) -> None:
        self._source.wait(self._settings.load_s)

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
