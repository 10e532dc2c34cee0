"""An adb server and the devices that it sees."""

from __future__ import annotations

import importlib
import os
import shutil
import subprocess
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from types import ModuleType
from typing import TYPE_CHECKING

from digirl_dist.child_process import last_lines, opened_log, reap
from digirl_dist.errors import EmulatorError, SettingsError

if TYPE_CHECKING:
    from adbutils import AdbDevice

    from digirl_dist.emulator.android.adb_client import Address

_START_LIMIT_S = 20.0
_STOP_LIMIT_S = 3.0
_ANSWER_LIMIT_S = 10.0
_CONNECT_LIMIT_S = 5.0
_LOOK_AGAIN_S = 0.05
_NO_SCAN = {"ADB_LOCAL_TRANSPORT_MAX_PORT": "5553"}
"""Keeps a server from looking for emulators by itself: it would take those of the other slots."""


class AdbServer:
    """One adb server: its own process when ``started_server`` made it, else one that runs already."""

    def __init__(self, address: Address, adb: str = "adb") -> None:
        self._address, self._adb = address, adb
        self._client = adb_client().Client(address, _ANSWER_LIMIT_S)
        self._process: subprocess.Popen[bytes] | None = None

    def run(self, folder: Path, name: str) -> None:
        """Run a server as a child of ours, so that it cannot outlive this slot. Raises EmulatorError.

        It listens at a socket file, not at a port: whoever reaches a server has its devices.
        """
        log = folder / f"{name}.log"
        for left in (folder / name, log):  # of one that was killed; the slot's lock says that it is not in use
            left.unlink(missing_ok=True)
        command = [self._adb, "-L", f"localfilesystem:{name}", "nodaemon", "server"]
        with opened_log(log) as output:
            self._process = subprocess.Popen(
                command,
                cwd=folder,
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=output,
                env={**os.environ, **_NO_SCAN},
                umask=0o077,
            )
        deadline = time.monotonic() + _START_LIMIT_S
        while not self.answers():
            if self._process.poll() is not None or time.monotonic() > deadline:
                self.close()
                raise EmulatorError(f"the adb server at {self._address} did not start{last_lines(log)}")
            time.sleep(_LOOK_AGAIN_S)

    def command(self, serial: str) -> tuple[list[str], Path | None]:
        """Returns the adb program with its server and device, and the folder in which it is to be run, if any."""
        words, folder = self._address.words
        return [self._adb, *words, "-s", serial], folder

    def console(self, serial: str, command: str, limit_s: float) -> None:
        """Sends a command to an emulator's console. Raises EmulatorError with the reason where it is refused."""
        words, folder = self.command(serial)
        try:
            done = subprocess.run(
                [*words, "emu", *command.split()],
                cwd=folder,
                stdin=subprocess.DEVNULL,
                capture_output=True,
                timeout=limit_s,
            )
        except (OSError, subprocess.TimeoutExpired) as error:
            raise EmulatorError(f"console of {serial}: `{command}`: {error}") from error
        said = " ".join((done.stdout + done.stderr).decode(errors="replace").split())
        if done.returncode or not said.endswith("OK"):
            raise EmulatorError(f"console of {serial}: `{command}`: {said[-300:]}")

    @property
    def pid(self) -> int:
        """Of a server that was started here."""
        assert self._process is not None
        return self._process.pid

    def answers(self) -> bool:
        """Whether something listens there."""
        try:
            self._address.connect(_ANSWER_LIMIT_S).close()
        except OSError:
            return False
        return True

    def require(self) -> None:
        """Raises SettingsError when nothing listens there."""
        if not self.answers():
            raise SettingsError(
                f"no adb server answers at {self._address}; run `adb start-server` there, or unset emulator.adb_server"
            )

    def states(self) -> dict[str, str]:
        """``device``, ``offline``, ``unauthorized`` … by serial. Raises EmulatorError."""
        with adb_errors(f"the adb server at {self._address}", "list its devices"):
            return {info.serial: info.state for info in self._client.list()}

    def connect(self, serial: str) -> str:
        """Ask for the device at ``host:port``; answers with what the server says about it. Raises EmulatorError."""
        with adb_errors(serial, "connect"):
            return str(self._client.connect(serial, timeout=_CONNECT_LIMIT_S))

    def disconnect(self, serial: str) -> None:
        with adb_errors(serial, "disconnect"):
            self._client.disconnect(serial)

    def reconnect(self, serial: str) -> None:
        """Drop the connection to a device on this machine and make it anew. Raises EmulatorError."""
        with adb_errors(serial, "reconnect"), self._client.make_connection() as link:
            link.send_command(f"host-serial:{serial}:reconnect")
            link.check_okay()

    def announce(self, adb_port: int) -> None:
        """Tell the server of an emulator on this machine, as emulators do. Raises EmulatorError."""
        with (
            adb_errors(f"the adb server at {self._address}", "hear of an emulator"),
            self._client.make_connection() as link,
        ):
            link.send_command(f"host:emulator:{adb_port}")

    def device(self, serial: str) -> AdbDevice:
        return self._client.device(serial)

    def close(self) -> None:
        """End the server if it is ours. A second call is harmless."""
        process, self._process = self._process, None
        if process is not None:
            process.terminate()
            reap(process, _STOP_LIMIT_S)


def adb_client() -> ModuleType:
    """The module that needs the client library. Raises SettingsError if that is missing."""
    try:
        return importlib.import_module("digirl_dist.emulator.android.adb_client")
    except ImportError as error:
        raise SettingsError("the adb client is missing: pip install 'digirl_dist[android]'") from error


def started_server(adb: str, folder: Path, console: int) -> AdbServer:
    """A server of the slot's own, at ``folder``/adb-CONSOLE.socket. Raises EmulatorError or SettingsError."""
    name = f"adb-{console}.socket"
    server = AdbServer(adb_client().SocketFile(folder, name), adb)
    server.run(folder, name)
    return server


@contextmanager
def adb_errors(what: str, doing: str) -> Iterator[None]:
    """Errors of adbutils, and of its connections, become EmulatorError."""
    from adbutils import AdbError

    try:
        yield
    except (AdbError, OSError, EOFError) as error:
        reason = " ".join(str(error).split()) or type(error).__name__
        raise EmulatorError(f"{what} failed to {doing}: {reason}") from error


def find_adb(sdk: Path | None) -> str:
    """The adb program, of the SDK or on PATH. Raises SettingsError."""
    if sdk is not None and (inside := sdk / "platform-tools" / "adb").is_file():
        return str(inside)
    if found := shutil.which("adb"):
        return found
    raise SettingsError("adb is not on PATH of this machine; install it (apt install adb) or set emulator.sdk_path")
