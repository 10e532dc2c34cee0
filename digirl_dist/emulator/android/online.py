"""Waits until a device can be used, and says what to do when it cannot."""

from __future__ import annotations

import time
from typing import Protocol

from digirl_dist.emulator.android.adb import AdbServer, adb_errors
from digirl_dist.errors import EmulatorError, SettingsError

_LOOK_AGAIN_S = 0.1
_PATIENCE_S = 5.0
"""So long may a device be offline, or ask for permission, before something is done about it: both happen in passing."""
_PROBE_LIMIT_S = 5.0
_READY, _BOOTING, _SILENT = "ready", "booting", "silent"


class Link(Protocol):
    """What brings a device to the adb server."""

    def check(self) -> None:
        """Raises EmulatorError when waiting is useless."""

    def attach(self, again: bool) -> None:
        """Tell the server of the device; ``again``: drop the connection that does not work first."""


def wait_until_online(server: AdbServer, serial: str, link: Link, limit_s: float) -> None:
    """Until adb shows the device and Android says ``sys.boot_completed``.

    Raises SettingsError when the device does not trust this machine, EmulatorError after ``limit_s``.
    """
    deadline = time.monotonic() + limit_s
    state, since = "", time.monotonic()
    while time.monotonic() < deadline:
        link.check()
        now = _state(server, serial)
        if now == _READY:
            return
        if now != state:
            state, since = now, time.monotonic()
        overdue = time.monotonic() - since > _PATIENCE_S
        if overdue and state in ("unauthorized", "authorizing"):
            raise SettingsError(_UNAUTHORIZED.format(serial=serial))
        if state == "absent" or (overdue and state in ("offline", _SILENT)):
            link.attach(again=state != "absent")
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
