"""Opens a connection by the program that is to carry it."""

from __future__ import annotations

from digirl_dist.errors import LinkLostError, SettingsError, UnreachableError
from digirl_dist.settings import SshSettings, SshTransport
from digirl_dist.ssh.carrier import carrier
from digirl_dist.ssh.connection import Address, Connection
from digirl_dist.ssh.login_shell import check_login_shell


def connect(address: Address, settings: SshSettings) -> Connection:
    """Connects to a machine whose host key is known, and logs in with a key.

    Raises HostKeyError, LoginError (both fatal) or UnreachableError, also while the ``ssh`` asked for is missing,
    for which a run that began with it waits. Nothing but a comment was sent to a login shell that runs no commands.
    """
    connection = _logged_in(address, settings)
    try:
        check_login_shell(connection, settings.login_s)
    except LinkLostError as error:
        connection.close()
        raise UnreachableError(address.name, error.reason, error.remedy) from error
    except BaseException:
        connection.close()
        raise
    return connection


def _logged_in(address: Address, settings: SshSettings) -> Connection:
    try:
        program = carrier(settings)
    except SettingsError as error:
        raise UnreachableError(address.name, str(error)) from error
    if program is SshTransport.openssh:
        from digirl_dist.ssh.openssh import connect_by_openssh

        return connect_by_openssh(address, settings)
    from digirl_dist.ssh.paramiko_connection import connect_by_paramiko

    return connect_by_paramiko(address, settings)
