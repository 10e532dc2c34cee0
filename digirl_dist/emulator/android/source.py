"""Where a device comes from: an instance of an AVD that is started here, or a device that runs already.

An instance is started in turn with the others, brought back by its snapshot, and stopped.
"""

from __future__ import annotations

import os
import re
import signal
import subprocess
import time

from digirl_dist.child_process import last_lines, opened_log
from digirl_dist.emulator.android.adb import AdbServer, adb_errors
from digirl_dist.emulator.android.avd import Avd
from digirl_dist.emulator.android.locks import Locks, Ports
from digirl_dist.emulator.android.options import AndroidOptions
from digirl_dist.errors import EmulatorError, SettingsError

LOAD_S = 30.0
"""Longest load of a snapshot, in seconds; then the instance is restarted."""
TURN_S = 600.0
"""Longest wait of an instance for its turn to boot, in seconds."""
_STOP_LIMIT_S = 3.0
_NO_SERVER = "1"
"""The program announces itself at a port. The slot's server has none, and the usual one may be somebody else's."""

_REMEDIES = (
    (r"/dev/kvm|hardware acceleration|\bKVM\b", "let this user use KVM: sudo usermod -aG kvm $USER, then log in anew"),
    (r"same AVD|[Aa]nother emulator", "another emulator has the AVD open for writing; close it"),
    (r"Unknown AVD", "make the AVD, or set emulator.avd and emulator.avd_home"),
    (r"port.*in use|[Cc]ould not bind", "another program took its port; it will try another one"),
    (r"[Nn]ot enough.*space|No space left", "free disk space on this machine"),
)
"""What the emulator program says when it ends at once, and what helps."""


class AvdInstance:
    """A ``-read-only`` instance: it writes to throw-away files, so any number of them share one AVD."""

    near = True

    def __init__(self, settings: AndroidOptions, avd: Avd, ports: Ports, server: AdbServer, locks: Locks) -> None:
        self.serial = f"emulator-{ports.console}"
        self._settings, self._avd, self._ports, self._server, self._locks = settings, avd, ports, server, locks
        self._log = locks.folder / f"{self.serial}.log"
        self._process: subprocess.Popen[bytes] | None = None

    def start(self, read_only: bool = True) -> None:
        """Boot, in turn with the other slots. Raises EmulatorError; then it is to be stopped."""
        settings = self._settings
        with self._locks.turn("boot", settings.boots_at_once, TURN_S):
            self._launch(read_only)
            wait_until_online(self._server, self.serial, self, settings.boot_s)

    def renew(self) -> None:
        """Back to the snapshot; by a restart if there is none or it cannot be loaded."""
        try:
            self._load_snapshot()
        except EmulatorError:
            # A restart is the cure whatever the reason was, and raises by itself if it does not help.
            self.stop()
            self.start()

    def save_snapshot(self, name: str) -> None:
        """Into the AVD; for an instance that was started with ``read_only=False``."""
        self._server.console(self.serial, f"avd snapshot save {name}", self._settings.boot_s)

    def wait(self, limit_s: float) -> None:
        wait_until_online(self._server, self.serial, self, limit_s)

    def stop(self) -> None:
        """End the program and all that it started. A second call is harmless."""
        process, self._process = self._process, None
        if process is None:
            return
        for ending in (signal.SIGTERM, signal.SIGKILL):
            try:
                os.killpg(process.pid, ending)
                process.wait(_STOP_LIMIT_S)
            except ProcessLookupError:
                break  # the whole group is gone
            except subprocess.TimeoutExpired:
                continue
        process.wait(_STOP_LIMIT_S)

    def check(self) -> None:
        """Raises EmulatorError if the program has ended, with its last words and the remedy."""
        assert self._process is not None
        status = self._process.poll()
        if status is None:
            return
        said = self._log.read_text(errors="replace")[-4000:]
        remedies = [f" -> {remedy}" for pattern, remedy in _REMEDIES if re.search(pattern, said)]
        advice = remedies[0] if remedies else ""
        raise EmulatorError(f"{self.serial} ended with status {status} while it booted{last_lines(self._log)}{advice}")

    def attach(self, again: bool) -> None:
        """The server does not look for emulators by itself, so it must hear of this one."""
        if again:
            self._server.reconnect(self.serial)
        self._server.announce(self._ports.adb)

    def _load_snapshot(self) -> None:
        if self._settings.snapshot is None:
            raise EmulatorError("there is no snapshot to load")
        self._server.console(self.serial, f"avd snapshot load {self._settings.snapshot}", LOAD_S)
        wait_until_online(self._server, self.serial, self, LOAD_S)

    def _launch(self, read_only: bool) -> None:
        self._log.unlink(missing_ok=True)
        with opened_log(self._log) as log:
            self._process = subprocess.Popen(
                self._command(read_only),
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                start_new_session=True,
                env=self._environment(),
            )

    def _command(self, read_only: bool) -> list[str]:
        snapshot = self._settings.snapshot
        return [
            str(self._avd.emulator),
            *("-avd", self._avd.name, "-port", str(self._ports.console)),
            *(["-read-only"] if read_only else []),
            *(["-snapshot", snapshot] if snapshot and read_only else ["-no-snapshot-load"]),
            *("-no-snapshot-save", "-no-window", "-no-audio", "-no-boot-anim", "-skip-adb-auth"),
            *self._settings.emulator_args,
        ]

    def _environment(self) -> dict[str, str]:
        """Over SSH there is no login environment: what the program looks for is named here."""
        return {
            **os.environ,
            "ANDROID_HOME": str(self._avd.sdk),
            "ANDROID_SDK_ROOT": str(self._avd.sdk),
            "ANDROID_AVD_HOME": str(self._avd.home),
            "ANDROID_ADB_SERVER_PORT": _NO_SERVER,
        }


class AttachedDevice:
    """It is used as it is found: there is no snapshot, so ``reset_commands`` and tasks must undo what episodes do."""

    def __init__(self, settings: AndroidOptions, serial: str, server: AdbServer) -> None:
        self.serial = serial
        self.near = serial.rpartition(":")[0] in ("127.0.0.1", "localhost")
        self._settings, self._server = settings, server
        self._said = ""

    def start(self) -> None:
        """Raises EmulatorError or SettingsError with the remedy when it cannot be used."""
        self.renew()

    def renew(self) -> None:
        self.wait(self._settings.boot_s)

    def wait(self, limit_s: float) -> None:
        try:
            wait_until_online(self._server, self.serial, self, limit_s)
        except EmulatorError as error:
            said = f"; adb said: {self._said}" if self._said else ""
            raise EmulatorError(f"{error}{said}") from error

    def stop(self) -> None:
        """It keeps running."""

    def check(self) -> None:
        """Nothing is known but what adb says."""

    def attach(self, again: bool) -> None:
        """On USB the server finds it by itself."""
        try:
            if ":" in self.serial:
                if again:
                    self._server.disconnect(self.serial)
                self._said = self._server.connect(self.serial)
            elif again:
                self._server.reconnect(self.serial)
        except EmulatorError as error:
            self._said = str(error)  # told of if the device has not come when the wait is over


Source = AvdInstance | AttachedDevice

_LOOK_AGAIN_S = 0.1
_PATIENCE_S = 5.0
"""So long may a device be offline, or ask for permission, before something is done about it: both happen in passing."""
_PROBE_LIMIT_S = 5.0
_READY, _BOOTING, _SILENT = "ready", "booting", "silent"


def wait_until_online(server: AdbServer, serial: str, source: Source, limit_s: float) -> None:
    """Until adb shows the device and Android says ``sys.boot_completed``.

    Raises SettingsError when the device does not trust this machine, EmulatorError after ``limit_s``.
    """
    deadline = time.monotonic() + limit_s
    state, since = "", time.monotonic()
    while time.monotonic() < deadline:
        source.check()
        now = _state(server, serial)
        if now == _READY:
            return
        if now != state:
            state, since = now, time.monotonic()
        overdue = time.monotonic() - since > _PATIENCE_S
        if overdue and state in ("unauthorized", "authorizing"):
            raise SettingsError(_UNAUTHORIZED.format(serial=serial))
        if state == "absent" or (overdue and state in ("offline", _SILENT)):
            source.attach(again=state != "absent")
            since = time.monotonic()
        time.sleep(_LOOK_AGAIN_S)
    raise EmulatorError(f"{serial} is not ready after {limit_s:g} s: {_WHY.get(state, f'adb calls it {state!r}')}")


def _state(server: AdbServer, serial: str) -> str:
    """What adb calls the device; where that is ``device``, what Android says of itself."""
    state = server.states().get(serial, "absent")
    if state != "device":
        return state
    try:
        with adb_errors(serial, "answer"):
            said = server.device(serial).shell("getprop sys.boot_completed", timeout=_PROBE_LIMIT_S)
    except EmulatorError:
        return _SILENT  # in passing, while it boots or loads a snapshot; the caller's limit holds
    return _READY if str(said).strip() == "1" else _BOOTING


_UNAUTHORIZED = (
    "{serial} is unauthorized: it does not trust the adb key of this machine; unlock it and accept the question on its "
    "screen, or start the emulator with -skip-adb-auth, or put ~/.android/adbkey of a trusted machine here"
)
_WHY = {
    _BOOTING: "adb reaches it, but Android has not finished booting (emulator.boot_s is how long it may take)",
    _SILENT: "adb shows it, but its shell does not answer; restart the device",
    "offline": "adb calls it offline: adbd on the device does not answer; restart the device, or its adb by "
    "`adb reconnect`; an emulator of this name may also have been taken by another adb server of this machine",
    "absent": "adb does not see it; is it switched on, and its network address or cable right (`adb devices`)?",
}
