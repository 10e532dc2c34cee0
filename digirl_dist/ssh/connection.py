"""One verified SSH connection to a worker, with time limits and an explanation for every failure."""

from __future__ import annotations

import logging
import shlex
import socket
import threading
import time
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import fabric
import paramiko
from paramiko.auth_strategy import AuthFailure
from paramiko.ssh_exception import NoValidConnectionsError

from digirl_dist.errors import LinkLostError, LoginError, UnreachableError, WorkerError
from digirl_dist.settings import SshSettings
from digirl_dist.ssh.channel import Channel, Deadline
from digirl_dist.ssh.host_keys import KnownKeys, RefuseUnknown, changed_key, known_hosts_files, revoked_key, target_name
from digirl_dist.ssh.login import KeyLogin, login_error
from digirl_dist.ssh.wire import Transport, Watch, open_transport

_LOG_CHANNEL = "digirl_dist.ssh.paramiko"
_SILENT = logging.NullHandler()
_ANSWER_S = 3.0
_MOST_OUTPUT = 16 << 20


@dataclass(frozen=True)
class Address:
    """Where a worker is. A field that is None comes from ~/.ssh/config, then from the defaults of ``ssh``."""

    name: str
    """The worker's name, used in every error."""
    host: str
    """Host name, address, or a ``Host`` of ~/.ssh/config."""
    port: int | None = None
    user: str | None = None
    key: str | None = None
    """Private key file. No other key is offered."""
    known_hosts: str | None = None
    """Known-hosts file. No other file is read."""


@dataclass(frozen=True)
class Completed:
    """A command that has ended. Status -1 means that a signal ended it. ``stderr`` holds at most its last MiB."""

    status: int
    stdout: bytes
    stderr: bytes

    @property
    def last_words(self) -> str:
        """The last lines of stderr, or of stdout if stderr is empty."""
        text = (self.stderr.strip() or self.stdout.strip()).decode(errors="replace")
        return "\n".join(text.splitlines()[-20:])


class Connection:
    """An open connection. Every call ends at its own time limit, or when the link has been silent for too long."""

    def __init__(self, address: Address, session: fabric.Connection, settings: SshSettings) -> None:
        self.worker = address.name
        self.address = address
        self._session = session
        self._settings = settings
        self._transport: Transport = session.transport
        self._watch = Watch(self._transport, settings, address.name)

    @property
    def alive(self) -> bool:
        return self._transport.is_active()

    @property
    def host(self) -> str:
        """The host name or address, after ~/.ssh/config."""
        return str(self._session.host)

    @property
    def port(self) -> int:
        return int(self._session.port)

    @property
    def user(self) -> str:
        return str(self._session.user)

    @property
    def fingerprint(self) -> str:
        """The host key's fingerprint and kind."""
        key = self._transport.get_remote_server_key()
        return f"{key.fingerprint} ({key.get_name()})"

    def answers(self) -> bool:
        """Returns True if the machine answers within seconds, which tells a silent link from a silent command."""
        asked = time.monotonic()
        deadline = asked + self._settings.ping_s + _ANSWER_S
        while self.alive and time.monotonic() < deadline:
            if self._transport.heard() > asked:
                return True
            time.sleep(0.05)
        return False

    def run(
        self,
        command: str | Sequence[str],
        input: bytes | Iterable[bytes] = b"",
        timeout_s: float = 60.0,
        most_bytes: int = _MOST_OUTPUT,
    ) -> Completed:
        """Runs ``command`` to its end and returns its output, whatever its exit status.

        Raises LinkLostError if the link breaks, WorkerError if the command does not end within ``timeout_s`` or prints
        more than ``most_bytes``.
        """
        deadline = Deadline(timeout_s)
        channel = self.open(command)
        feeder = _Feeder(channel, [input] if isinstance(input, bytes) else input)
        try:
            output = bytearray()
            while chunk := channel.receive_until(deadline):
                output += chunk
                if len(output) > most_bytes:
                    raise WorkerError(self.worker, f"`{channel.command}` printed more than {most_bytes >> 10} KiB")
            if chunk is None:
                raise WorkerError(self.worker, f"`{channel.command}` did not end within {timeout_s:g} s")
            status = channel.wait(max(0.0, deadline.left_s))
            feeder.raise_own_error()
            return Completed(status, bytes(output), channel.stderr())
        finally:
            channel.close()

    def open(self, command: str | Sequence[str]) -> Channel:
        """Starts ``command`` and returns its channel.

        ``quote`` quotes a list; a string goes to the remote shell as it is. Raises LinkLostError, or WorkerError if the
        worker refuses another channel.
        """
        line = command if isinstance(command, str) else quote(command)
        try:
            raw = self._transport.open_session(timeout=self._settings.connect_s)
            raw.exec_command(line)
        except paramiko.ChannelException as error:
            raise WorkerError(
                self.worker, f"sshd refuses to run `{line}` ({error.text})", "raise MaxSessions in its sshd_config"
            ) from error
        except (paramiko.SSHException, OSError, EOFError) as error:
            raise LinkLostError(self.worker, f"the connection broke while starting `{line}` ({error})") from error
        return Channel(raw, self.worker, line, self._settings.stall_s, 1024 * self._settings.slowest_kb_s)

    def close(self) -> None:
        """Cuts the connection at once, without waiting for the worker."""
        self._watch.stop()
        _close(self._session)

    def __enter__(self) -> Connection:
        return self

    def __exit__(self, *exc: object) -> None:
        self.close()


def connect(address: Address, settings: SshSettings) -> Connection:
    """Connects to a machine whose host key is known, and logs in with a key.

    Raises HostKeyError, LoginError (both fatal) or UnreachableError.
    """
    logging.getLogger(_LOG_CHANNEL).addHandler(_SILENT)
    session = _session(address, settings)
    files = known_hosts_files(address.known_hosts, session.ssh_config.get("userknownhostsfile"))
    try:
        _prepare(session, address, files)
        session.open()
        if not session.transport.is_authenticated():
            raise LoginError(address.name, f"{session.host} demands more than a key", "allow login by key alone there")
        return Connection(address, session, settings)
    except BaseException as error:
        failing = _failing_hop(session)
        _close(session)
        if isinstance(error, (paramiko.SSHException, OSError, EOFError, ValueError)):
            raise _explain(error, address, failing, settings, files[0]) from error
        raise


def quote(command: Sequence[str]) -> str:
    """Returns ``command`` as one line for a shell.

    A leading ``~/`` of an argument stays outside the quotes, so that the remote shell expands it to its own home.
    Everything else is literal.
    """
    return " ".join(_quote_one(argument) for argument in command)


def _quote_one(argument: str) -> str:
    if argument == "~" or argument == "~/":
        return argument
    return "~/" + shlex.quote(argument[2:]) if argument.startswith("~/") else shlex.quote(argument)


class _Feeder:
    """Writes a command's input in its own thread, because the command may write output before it has read all input."""

    def __init__(self, channel: Channel, chunks: Iterable[bytes]) -> None:
        self._channel = channel
        self._chunks = chunks
        self._error: Exception | None = None
        threading.Thread(target=self._feed, name=f"ssh-input-{channel.worker}", daemon=True).start()

    def raise_own_error(self) -> None:
        """Re-raises an exception of the input's source, if there was one."""
        if self._error is not None:
            raise self._error

    def _feed(self) -> None:
        try:
            for chunk in self._chunks:
                self._channel.write(chunk)
        except WorkerError:
            pass  # the command has ended or the link is gone; the reader of its output finds out which
        except Exception as error:
            self._error = error
        self._channel.close_input()


def _session(address: Address, settings: SshSettings) -> fabric.Connection:
    """Returns fabric's connection, not yet open. It reads ~/.ssh/config and builds the chain of jump hosts."""
    kwargs = {
        "banner_timeout": settings.connect_s,
        "auth_timeout": settings.login_s,
        "channel_timeout": settings.connect_s,
        "transport_factory": partial(open_transport, settings=settings),
    }
    overrides = {"connect_kwargs": kwargs, "timeouts": {"connect": settings.connect_s}}
    # Lazy: fabric's own configuration files must not change what this program does.
    config = fabric.Config(overrides=overrides, lazy=True)
    config.load_ssh_config()
    host = f"[{address.host}]" if ":" in address.host else address.host
    return fabric.Connection(host, user=address.user, port=address.port, config=config, forward_agent=False)


def _prepare(session: fabric.Connection, address: Address, files: list[Path]) -> None:
    """Makes the session and its jump hosts verify host keys and log in without prompting."""
    session.client.set_log_channel(_LOG_CHANNEL)
    known = KnownKeys(files, target_name(session.host, session.port))
    session.client.set_missing_host_key_policy(RefuseUnknown(address.name, files[0], known))
    for key in known.trusted():
        session.client.get_host_keys().add(known.target, key.get_name(), key)
    session.config.authentication.strategy_class = partial(KeyLogin, address.name, address.key)
    if isinstance(session.gateway, fabric.Connection):
        jump = Address(address.name, session.gateway.host, known_hosts=address.known_hosts)
        _prepare(session.gateway, jump, files)


def _close(session: fabric.Connection) -> None:
    session.client.close()
    if isinstance(session.gateway, fabric.Connection):
        _close(session.gateway)


def _failing_hop(session: fabric.Connection) -> fabric.Connection:
    """Returns the first jump host that could not be reached, or the session itself."""
    gateway = session.gateway
    if isinstance(gateway, fabric.Connection) and not gateway.is_connected:
        return _failing_hop(gateway)
    return session


def _explain(
    error: Exception, address: Address, session: fabric.Connection, settings: SshSettings, known_hosts: Path
) -> WorkerError:
    """Translates the many exceptions of a failed connection into this package's errors."""
    name, at = address.name, f"{session.host}:{session.port}"
    within = f"within {settings.connect_s:g} s"
    look = f"look whether the machine is up and `ssh {session.original_host}` works"
    match error:
        case paramiko.BadHostKeyException():
            target = target_name(session.host, session.port)
            if KnownKeys([known_hosts], target).has_revoked(error.key):
                return revoked_key(name, target, error.key)
            return changed_key(name, target, error, known_hosts)
        case AuthFailure():
            return login_error(name, error, session.host, session.port)
        case socket.gaierror():
            return UnreachableError(name, f"the host name {session.host} is unknown", "correct the worker's `host`")
        case NoValidConnectionsError() if not any(map(_refused, error.errors.values())):
            return UnreachableError(name, f"{at} cannot be reached ({next(iter(error.errors.values()))})", look)
        case NoValidConnectionsError():
            return UnreachableError(name, f"nothing listens at {at}", look)
        case TimeoutError():
            return UnreachableError(name, f"{at} did not answer {within}", look)
        case paramiko.ChannelException():
            return UnreachableError(name, f"the jump host cannot reach {at} ({error.text})", look)
        case paramiko.SSHException() if _gave_no_greeting(error):
            return UnreachableError(name, f"{at} accepts connections but did not greet {within}", look)
        case EOFError() | ConnectionResetError() | paramiko.SSHException() if _was_cut(error):
            return UnreachableError(
                name, f"{at} closed the connection before the login", "it may limit simultaneous logins (MaxStartups)"
            )
        case _:
            return UnreachableError(name, f"cannot connect to {at}: {error or type(error).__name__}", look)


def _gave_no_greeting(error: Any) -> bool:
    # paramiko reports "No existing session" when it gave up halfway because the listener is frozen.
    timed_out = isinstance(error.__context__, TimeoutError)
    return "No existing session" in str(error) or ("banner" in str(error) and timed_out)


def _refused(error: Exception) -> bool:
    return isinstance(error, ConnectionRefusedError)


def _was_cut(error: Exception) -> bool:
    return isinstance(error, (EOFError, ConnectionResetError)) or "banner" in str(error)
