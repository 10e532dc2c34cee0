"""Puts AndroidWorld's apps on an AVD and saves the state from which episodes start.

``python -m digirl_dist.emulator.androidworld.apps AVD SNAPSHOT`` boots the AVD once from cold, without ``-read-only``,
has AndroidWorld download, install and set up its apps, and saves the snapshot.
"""

from __future__ import annotations

import sys
from functools import partial

from digirl_dist.emulator.android.adb import AdbServer
from digirl_dist.emulator.android.adb_device import AndroidDevice
from digirl_dist.emulator.android.options import AndroidOptions
from digirl_dist.emulator.android.snapshot import command, save_snapshot
from digirl_dist.emulator.android.source import AvdInstance
from digirl_dist.emulator.androidworld import blamed, package_needed

_INSTALL_S = 600.0
"""Longest installation of one app."""


def install_apps(settings: AndroidOptions, instance: AvdInstance, server: AdbServer, device: AndroidDevice) -> None:
    """Raises SettingsError without the package, EmulatorError where the apps cannot be installed."""
    with package_needed():
        from android_world.env.setup_device import setup

        from digirl_dist.emulator.androidworld import world
    adb = world.Adb(*server.command(device.serial), _INSTALL_S, partial(instance.wait, settings.boot_s))
    with blamed("install its apps"):
        setup.setup_apps(world.world_of(adb, device.frame, device.window))


def save_with_apps(settings: AndroidOptions, name: str) -> None:
    """Raises SettingsError or EmulatorError with the remedy."""
    with package_needed():
        import android_world  # noqa: F401  # before the AVD boots
    save_snapshot(settings, name, partial(install_apps, settings))


if __name__ == "__main__":
    sys.exit(command(sys.argv[1:], "androidworld.apps", save_with_apps))
