"""Chooses the program that carries connections. Imports nothing heavy, so a wrong choice is refused at once."""

from __future__ import annotations

import os
import pwd
import shutil

from digirl_dist.errors import SettingsError
from digirl_dist.settings import SshSettings, SshTransport


def carrier(settings: SshSettings) -> SshTransport:
    """Returns ``openssh`` or ``paramiko``, never ``auto``. Raises SettingsError for ``openssh`` where it cannot run."""
    lacking = _why_no_ssh()
    if settings.transport is SshTransport.openssh and lacking:
        raise SettingsError(f"ssh.transport=openssh: {lacking}, or set ssh.transport=paramiko")
    if settings.transport is SshTransport.auto:
        return SshTransport.paramiko if lacking else SshTransport.openssh
    return settings.transport


def _why_no_ssh() -> str:
    """Returns why no ``ssh`` can run here, and what to do; empty if it can."""
    if shutil.which("ssh") is None:
        return "this machine has no `ssh`; install it (Debian: openssh-client)"
    try:
        pwd.getpwuid(os.getuid())
    except KeyError:
        return f"`ssh` runs for no user without a name, as user {os.getuid()} is here; add one to /etc/passwd"
    return ""
