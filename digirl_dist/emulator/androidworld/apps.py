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
from digirl_dist.emulator.android.snapshot import save_snapshot
from digirl_dist.emulator.android.source import AvdInstance
from digirl_dist.emulator.androidworld import blamed, package_needed
from digirl_dist.errors import DigirlDistError

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


def main(argv: list[str]) -> int:
    if len(argv) != 2:
        sys.stderr.write("usage: python -m digirl_dist.emulator.androidworld.apps AVD SNAPSHOT\n")
        return 2
    settings = AndroidOptions(avd=argv[0])
    try:
        with package_needed():
            import android_world  # noqa: F401  # before the AVD boots
        save_snapshot(settings, argv[1], partial(install_apps, settings))
    except DigirlDistError as error:
        sys.stderr.write(f"{error}\n")
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
