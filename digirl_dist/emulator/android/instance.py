"""One running instance of an AVD: started in turn with the others, brought back by its snapshot, stopped."""

from __future__ import annotations

import os
import re
import signal
import subprocess

from digirl_dist.child_process import last_lines, opened_log
from digirl_dist.emulator.android.adb import AdbServer
from digirl_dist.emulator.android.avd import Avd
from digirl_dist.emulator.android.console import Console
from digirl_dist.emulator.android.locks import Locks
from digirl_dist.emulator.android.online import wait_until_online
from digirl_dist.emulator.android.options import AndroidOptions
from digirl_dist.emulator.android.ports import Ports
from digirl_dist.errors import EmulatorError

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
        with self._locks.turn("boot", settings.boots_at_once, settings.turn_s):
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
        with Console(self._ports.console, self._settings.boot_s) as console:
            console.ask(f"avd snapshot save {name}")

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
        settings = self._settings
        if settings.snapshot is None:
            raise EmulatorError("there is no snapshot to load")
        with Console(self._ports.console, settings.load_s) as console:
            console.ask(f"avd snapshot load {settings.snapshot}")
        wait_until_online(self._server, self.serial, self, settings.load_s)

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
