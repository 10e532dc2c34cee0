"""Opens a connection by the program that is to carry it, and asks the login shell whether it runs commands as they are.

Start-up files run for commands, too. One that starts another shell has that shell read, and run, what is meant for the
command; one that prints or reads mixes with what the command says and hears.
"""

from __future__ import annotations

import secrets
from contextlib import closing, suppress

from digirl_dist.errors import (
    LinkLostError,
    SettingsError,
    ShellError,
    SilentError,
    SlowShellError,
    UnreachableError,
    WorkerError,
    on_error,
)
from digirl_dist.settings import SshSettings
from digirl_dist.ssh.carriers import carrier
from digirl_dist.ssh.channel import Channel, Deadline
from digirl_dist.ssh.connection import Address, Connection
from digirl_dist.ssh.login import expired

_SENT = b"# digirl-dist asks whether this shell runs commands"
"""A comment, for any shell that reads it in place of the command."""
_MOST_BYTES = 1 << 16
_SHOWN = 300
_FILES = "in the start-up files of its login shell (~/.bashrc, ~/.zshenv, ~/.cshrc)"
_QUIET = (
    f"let nothing be started with exec, printed or read {_FILES} where the shell is not interactive: "
    "`case $- in *i*) ;; *) return ;; esac` at the top; an account without a shell needs one (`chsh`), and a "
    "ForceCommand in sshd_config or a `command=` in authorized_keys must go"
)


def connect(address: Address, settings: SshSettings) -> Connection:
    """Connects to a machine whose host key is known, and logs in with a key.

    Raises HostKeyError, LoginError (both fatal) or UnreachableError, also while the ``ssh`` asked for is missing,
    for which a run that began with it waits. Nothing but a comment was sent to a login shell that runs no commands.
    """
    connection = _logged_in(address, settings)
    with on_error(connection.close):
        try:
            _check_login_shell(connection, settings.login_s)
        except LinkLostError as error:
            raise UnreachableError(address.name, error.reason, error.remedy) from error
    return connection


def _logged_in(address: Address, settings: SshSettings) -> Connection:
    try:
        program = carrier(settings)
    except SettingsError as error:
        raise UnreachableError(address.name, str(error)) from error
    return program.connect(address, settings)


def _check_login_shell(connection: Connection, limit_s: float) -> None:
    """Raises ShellError, SlowShellError after ``limit_s``, LoginError if the account has expired, or LinkLostError."""
    word = secrets.token_hex(8)
    try:
        channel = connection.open(f'IFS= read -r line; printf "%s %s\\n" {word} "$line"')
    except LinkLostError:
        raise
    except WorkerError as error:  # the server lets nobody run commands
        raise ShellError(error.worker, error.reason, error.remedy) from error
    with closing(channel):
        with suppress(WorkerError):  # it has ended: its output says more
            channel.write(_SENT + b"\n")
            channel.close_input()
        said = _output(channel, limit_s)
        if said != b"%s %s\n" % (word.encode(), _SENT):
            raise _refusal(connection, word.encode(), said, channel.stderr_tail())


def _output(channel: Channel, limit_s: float) -> bytes:
    deadline, said = Deadline(limit_s), b""
    try:
        while len(said) < _MOST_BYTES and (more := channel.read(within=deadline)):
            said += more
    except SilentError as error:
        reason = f"its login shell did not run a command within {limit_s:g} s (ssh.login_s)"
        raise SlowShellError(channel.worker, reason, _QUIET) from error
    return said


def _refusal(connection: Connection, word: bytes, output: bytes, stderr: str) -> WorkerError:
    noise, ran, line = output.partition(word)
    shown = "\n".join(filter(None, [noise.decode(errors="replace").strip(), stderr.strip()]))[-_SHOWN:]
    worker = connection.worker
    if not ran and (error := expired(worker, connection.user, connection.host, shown)):
        return error
    if ran and _SENT not in line:
        return ShellError(worker, "its start-up files read what is sent to commands", _QUIET)
    if ran:
        return ShellError(worker, f"its start-up files print {shown!r} to the output of commands", _QUIET)
    said = f"; it says {shown!r}" if shown else ""
    return ShellError(worker, f"start-up files, or its login shell, run something else than a command{said}", _QUIET)
