"""What an Android device is asked to do where nothing else was named: a few things that every image has."""

from __future__ import annotations

from typing import Any

from digirl_dist.emulator import DeviceActions, EmulatorSpec
from digirl_dist.emulator.android.options import AndroidOptions
from digirl_dist.errors import SettingsError
from digirl_dist.tasks import Task

MAX_STEPS = 10
"""Longest episode, unless the user says otherwise; that of DigiRL's general tasks."""

_FOCUS = "dumpsys window | grep mCurrentFocus"


_USEFUL = (*DeviceActions().useful, "drag", "select")


def android_spec(settings: AndroidOptions) -> EmulatorSpec:
    """Raises SettingsError for values that cannot be used on any machine."""
    if (settings.avd is None) == (not settings.serials):
        raise SettingsError("an Android emulator needs either emulator.avd=NAME or emulator.serials=[…]")
    usb = [serial for serial in settings.serials if ":" not in serial]
    if usb and settings.adb_server is None:
        raise SettingsError(
            f"emulator.serials={usb} are on USB, which only one adb server of a machine may use: run "
            "`adb start-server` there and set emulator.adb_server=127.0.0.1:5037"
        )
    if settings.first_port % 2:
        raise SettingsError("emulator.first_port must be even")
    for part in settings.masked:
        if not _is_part_of_the_screen(part):
            raise SettingsError(f"emulator.masked: {part} is not [left, top, right, bottom] in shares of the screen")
    height, width = settings.image_size
    return EmulatorSpec(DeviceActions(_USEFUL), image_size=(height, width), labels=settings.labels, steady=False)


def android_tasks(split: str) -> list[Task]:
    """Returns settings to change and an app to open, each checked by a command.

    ``split`` is ``train`` or ``test``: the same in other words.
    """
    words = 0 if split == "train" else 1
    return [
        Task(id, wordings[words], {"setup": list(setup), "check": {"command": command, "matches": matches}})
        for id, wordings, setup, command, matches in _DEFAULT
    ]


def _is_part_of_the_screen(part: Any) -> bool:
    if not isinstance(part, list) or len(part) != 4 or not all(isinstance(edge, int | float) for edge in part):
        return False
    left, top, right, bottom = part
    return bool(0 <= left <= right <= 1 and 0 <= top <= bottom <= 1)


_DEFAULT = (
    ("open-settings", ("Open the Settings app", "Go to Settings"), (), _FOCUS, r"com\.android\.settings"),
    (
        "airplane-on",
        ("Turn on airplane mode", "Switch airplane mode on"),
        ("cmd connectivity airplane-mode disable",),
        "settings get global airplane_mode_on",
        r"^1$",
    ),
    (
        "dark-theme",
        ("Turn on the dark theme", "Switch the display to dark theme"),
        ("cmd uimode night no",),
        "cmd uimode night",
        r"Night mode: yes",
    ),
    (
        "wifi-off",
        ("Turn off Wi-Fi", "Switch Wi-Fi off"),
        ("svc wifi enable",),
        "settings get global wifi_on",
        r"^0$",
    ),
    (
        "location-off",
        ("Turn off location", "Switch the location off"),
        ("settings put secure location_mode 3",),
        "settings get secure location_mode",
        r"^0$",
    ),
)
"""Id, wordings for train and test, setup, and the check: a command and what it must print."""
