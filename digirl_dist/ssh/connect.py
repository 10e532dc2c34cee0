"""Chooses the program that carries a connection."""

from __future__ import annotations

import shutil

from digirl_dist.errors import SettingsError
from digirl_dist.settings import SshSettings, SshTransport
from digirl_dist.ssh.connection import Address, Connection


def connect(address: Address, settings: SshSettings) -> Connection:
    """Connects to a machine whose host key is known, and logs in with a key.

    Raises HostKeyError, LoginError (both fatal) or UnreachableError; SettingsError if OpenSSH is asked for and missing.
    """
    if carrier(settings) is SshTransport.openssh:
        from digirl_dist.ssh.openssh import connect_by_openssh

        return connect_by_openssh(address, settings)
    from digirl_dist.ssh.paramiko_connection import connect_by_paramiko

    return connect_by_paramiko(address, settings)


def carrier(settings: SshSettings) -> SshTransport:
    """Returns ``openssh`` or ``paramiko``, never ``auto``."""
    has_ssh = shutil.which("ssh") is not None
    if settings.transport is SshTransport.openssh and not has_ssh:
        raise SettingsError("ssh.transport=openssh: this machine has no `ssh`; install it (Debian: openssh-client)")
    if settings.transport is SshTransport.auto:
        return SshTransport.openssh if has_ssh else SshTransport.paramiko
    return settings.transport
