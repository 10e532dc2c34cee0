"""How the slots of one machine, each a process of its own, agree on ports, devices and turns: file locks.

A lock goes with the process that holds it, however that ends.
"""

from __future__ import annotations

import fcntl
import os
import socket
import stat
import time
from collections.abc import Iterable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import NamedTuple

from digirl_dist.errors import EmulatorError, SettingsError

_LOOK_AGAIN_S = 0.05


class Locks:
    """Named locks in a folder of this user on a local disk. ``folder`` None: one under /tmp."""

    def __init__(self, folder: str | None) -> None:
        """Raises SettingsError if the folder cannot be used."""
        self.folder = Path(folder).expanduser() if folder else Path("/tmp") / f"digirl-android-{os.getuid()}"
        self._held: dict[str, int] = {}
        try:
            self.folder.mkdir(mode=0o700, parents=True, exist_ok=True)
            owner = self.folder.lstat()
        except OSError as error:
            raise SettingsError(f"emulator.lock_path={self.folder} cannot be made: {error.strerror}") from error
        if owner.st_uid != os.getuid() or not stat.S_ISDIR(owner.st_mode):
            raise SettingsError(f"{self.folder} belongs to somebody else; set emulator.lock_path to another folder")

    def take(self, name: str) -> bool:
        """Whether the lock could be had; it is held until ``release`` or the end of this process."""
        if name in self._held:
            return False
        handle = os.open(self.folder / name.replace("/", "_"), os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        try:
            fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            os.close(handle)
            return False
        except OSError as error:
            os.close(handle)
            reason = f"emulator.lock_path={self.folder} cannot be used: {error.strerror}"
            raise SettingsError(f"{reason}; set it to a folder on a local disk") from error
        self._held[name] = handle
        return True

    def release(self, name: str) -> None:
        with suppress(KeyError):
            os.close(self._held.pop(name))

    def release_all(self) -> None:
        for name in list(self._held):
            self.release(name)

    def take_one(self, names: Iterable[str]) -> str | None:
        """The first of ``names`` that nobody holds, now ours; None if there is none."""
        return next((name for name in names if self.take(name)), None)

    @contextmanager
    def turn(self, name: str, at_once: int, limit_s: float) -> Iterator[None]:
        """One of ``at_once`` places. Raises EmulatorError when none came free within ``limit_s``."""
        places = [f"{name}-{index}" for index in range(at_once)]
        deadline = time.monotonic() + limit_s
        while (place := self.take_one(places)) is None:
            if time.monotonic() > deadline:
                raise EmulatorError(f"no turn to {name} within {limit_s:g} s; {at_once} others are still at it")
            time.sleep(_LOOK_AGAIN_S)
        try:
            yield
        finally:
            self.release(place)


LAST_CONSOLE = 5682
"""The emulator program takes no higher console port."""


class Ports(NamedTuple):
    """The two ports of an emulator: console (even), and adb (the next)."""

    console: int
    adb: int


def claim_ports(locks: Locks, first: int) -> Ports:
    """The first ports from ``first`` on that neither another slot nor another program has. Raises EmulatorError."""
    for console in range(first, LAST_CONSOLE + 1, 2):
        ports = Ports(console, console + 1)
        name = f"port-{console}"
        if not locks.take(name):
            continue
        if all(map(_is_free, ports)):
            return ports
        locks.release(name)
    raise EmulatorError(
        f"all pairs of ports from emulator.first_port={first} to {LAST_CONSOLE} are in use on this machine; "
        "lower bsize, or end emulators that were left behind"
    )


def _is_free(port: int) -> bool:
    with socket.socket() as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind(("127.0.0.1", port))
        except OSError:
            return False
        return True


def claim_serial(locks: Locks, serials: list[str]) -> str:
    """A device that no other slot of this machine uses. Raises EmulatorError."""
    names = {f"serial-{serial}": serial for serial in serials}
    name = locks.take_one(names)
    if name is None:
        raise EmulatorError(f"all of emulator.serials={serials} are in use by other slots; lower bsize or add devices")
    return names[name]
