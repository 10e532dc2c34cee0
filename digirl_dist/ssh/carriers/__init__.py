"""The programs that can carry a connection; ``ssh.transport=NAME`` chooses one. A module here is a ``Carrier``."""

from __future__ import annotations

import importlib
import pkgutil
from typing import Protocol, cast

from digirl_dist.errors import SettingsError
from digirl_dist.plain_text import nearest
from digirl_dist.settings import SshSettings
from digirl_dist.ssh.connection import Address, Connection


class Carrier(Protocol):
    """What a module of this folder has. It imports nothing that may lack here at its top."""

    def lacking(self) -> str:
        """Returns why it cannot work on this machine, and what to do; empty if it can."""

    def connect(self, address: Address, settings: SshSettings) -> Connection:
        """Connects to a machine whose host key is known, and logs in without asking anything.

        Raises HostKeyError, LoginError (both fatal) or UnreachableError.
        """

    def whereabouts(self, address: Address, settings: SshSettings) -> tuple[str, int, bool]:
        """Returns the host and port of a worker, and whether it is behind another host. Raises WorkerError."""


def carrier(settings: SshSettings) -> Carrier:
    """Returns what ``ssh.transport`` names; of ``auto``, OpenSSH where it can work. Raises SettingsError."""
    name, known = settings.transport, [each.name for each in pkgutil.iter_modules(__path__)]
    if name == "auto":
        name = "paramiko" if _module("openssh").lacking() else "openssh"
    if name not in known:
        raise SettingsError(f"ssh.transport: there is no {name!r}; {nearest(name, ['auto', *known])}")
    if reason := _module(name).lacking():
        raise SettingsError(f"ssh.transport={name}: {reason}, or set ssh.transport=paramiko")
    return _module(name)


def _module(name: str) -> Carrier:
    return cast(Carrier, importlib.import_module(f"{__name__}.{name}"))
