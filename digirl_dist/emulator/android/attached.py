"""A device that runs already, by its serial: a phone on a cable, or anything that listens for adb on the network."""

from __future__ import annotations

from digirl_dist.emulator.android.adb import AdbServer
from digirl_dist.emulator.android.locks import Locks
from digirl_dist.emulator.android.online import wait_until_online
from digirl_dist.emulator.android.options import AndroidOptions
from digirl_dist.errors import EmulatorError


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


def claim_serial(locks: Locks, serials: list[str]) -> str:
    """A device that no other slot of this machine uses. Raises EmulatorError."""
    names = {f"serial-{serial}": serial for serial in serials}
    name = locks.take_one(names)
    if name is None:
        raise EmulatorError(f"all of emulator.serials={serials} are in use by other slots; lower bsize or add devices")
    return names[name]
