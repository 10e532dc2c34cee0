"""Makes the snapshot from which instances start: ``python -m digirl_dist.emulator.android.snapshot AVD SNAPSHOT``.

Boots the AVD once from cold, without ``-read-only``, runs the commands of ``reset_commands`` and saves its state.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from dataclasses import replace

from digirl_dist.emulator.android.adb import AdbServer, find_adb, started_server
from digirl_dist.emulator.android.adb_device import AndroidDevice
from digirl_dist.emulator.android.avd import find_avd
from digirl_dist.emulator.android.locks import Locks, claim_ports
from digirl_dist.emulator.android.options import AndroidOptions
from digirl_dist.emulator.android.source import AvdInstance
from digirl_dist.errors import DigirlDistError, EmulatorError


def save_snapshot(
    settings: AndroidOptions,
    name: str,
    prepare: Callable[[AvdInstance, AdbServer, AndroidDevice], None] = lambda *_: None,
) -> None:
    """Make or replace the snapshot ``name`` of ``settings.avd``. No other instance of the AVD may run meanwhile.

    ``prepare`` may change the device before.

    Raises SettingsError or EmulatorError with the remedy.
    """
    cold = replace(settings, snapshot=None)
    avd = find_avd(cold)
    with ExitStack() as stack:
        locks = Locks(cold.lock_path)
        stack.callback(locks.release_all)
        ports = claim_ports(locks, cold.first_port)
        server = started_server(find_adb(avd.sdk), locks.folder, ports.console)
        stack.callback(server.close)
        instance = AvdInstance(cold, avd, ports, server, locks)
        stack.callback(instance.stop)
        instance.start(read_only=False)
        device = AndroidDevice(server, instance.serial, near=True)
        for command in cold.reset_commands:
            device.shell(command)
        prepare(instance, server, device)
        instance.save_snapshot(name)
    if not avd.has_snapshot(name):
        raise EmulatorError(f"the emulator said that it saved {name!r}, but {avd.content} has no such snapshot")


def command(argv: Sequence[str], module: str, save: Callable[[AndroidOptions, str], None]) -> int:
    """Returns the exit status of ``python -m digirl_dist.emulator.MODULE AVD SNAPSHOT``; ``argv`` are the last two."""
    if len(argv) != 2:
        sys.stderr.write(f"usage: python -m digirl_dist.emulator.{module} AVD SNAPSHOT\n")
        return 2
    try:
        save(AndroidOptions(avd=argv[0]), argv[1])
    except DigirlDistError as error:
        sys.stderr.write(f"{error}\n")
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(command(sys.argv[1:], "android.snapshot", save_snapshot))
