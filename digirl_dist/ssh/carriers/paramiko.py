"""Connections that paramiko carries, by fabric: for machines without an ``ssh``.

Of ~/.ssh/config it reads what fabric does: ``Include``, ``none``, several jump hosts in one ``ProxyJump``, and newer
criteria of ``Match`` need ``ssh``.
"""

from __future__ import annotations

import logging
import os
import socket
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from functools import partial
from pathlib import Path
from typing import Any

import fabric
import paramiko
from paramiko.auth_strategy import AuthFailure
from paramiko.ssh_exception import NoValidConnectionsError

from digirl_dist.errors import SHORTAGES, LoginError, UnknownHostError, UnreachableError, WorkerError
from digirl_dist.plain_text import host_and_port
from digirl_dist.settings import SshSettings
from digirl_dist.ssh.connection import (
    Address,
    Connection,
    broken_at_start,
    for_login_shell,
    quote,
    too_many_channels,
    user_name,
)
from digirl_dist.ssh.host_keys import KnownKeys, RefuseUnknown, changed_key, known_hosts_files, revoked_key, target_name
from digirl_dist.ssh.login import KeyLogin, expired, login_error, with_words
from digirl_dist.ssh.paramiko_channel import ParamikoChannel, Transport, Watch, open_transport
from digirl_dist.threads import after

_LOG_CHANNEL = "digirl_dist.ssh.paramiko"
_SILENT = logging.NullHandler()
_ANSWER_S = 3.0
_AGENT_SHARE = 0.8
"""The share of the time for an answer to a login that the SSH agent may take for each of its own."""


class ParamikoConnection(Connection):
    """A ``Connection`` that is encrypted in this process."""

    def __init__(self, address: Address, session: fabric.Connection, settings: SshSettings) -> None:
        self.address = address
        self.host, self.port, self.user = str(session.host), int(session.port), str(session.user)
        self._session = session
        self._settings = settings
        self._transport: Transport = session.transport
        self._watch = Watch(self._transport, settings)
        key = self._transport.get_remote_server_key()
        self.fingerprint = f"{key.fingerprint} ({key.get_name()})"

    @property
    def alive(self) -> bool:
        return self._transport.is_active()

    def answers(self) -> bool:
        asked = time.monotonic()
        deadline = asked + self._settings.ping_s + _ANSWER_S
        while self.alive and time.monotonic() < deadline:
            if self._transport.heard() > asked:
                return True
            time.sleep(0.05)
        return False

    def open(self, command: str | Sequence[str]) -> ParamikoChannel:
        line = quote(command)
        try:
            raw = self._transport.open_session(timeout=self._settings.connect_s)
            with _closed_after(self._settings.connect_s + self._settings.silence_s, raw.close):
                raw.exec_command(for_login_shell(command))  # waits for the answer of a server that may never give one
        except paramiko.ChannelException as error:
            raise too_many_channels(self.worker, line, error.text) from error
        except (paramiko.SSHException, OSError, EOFError) as error:
            raise broken_at_start(self.worker, line, error) from error
        return ParamikoChannel(raw, self.worker, line, self._settings.stall_s, 1024 * self._settings.slowest_kb_s)

    def close(self) -> None:
        self._watch.stop()
        _close(self._session)


def lacking() -> str:
    """See ``Carrier``: it comes with this package."""
    return ""


def whereabouts(address: Address, settings: SshSettings) -> tuple[str, int, bool]:
    """See ``Carrier``."""
    session = _unopened(address, settings)
    return str(session.host), int(session.port), bool(session.gateway)


def connect(address: Address, settings: SshSettings) -> Connection:
    """See ``Carrier``."""
    logging.getLogger(_LOG_CHANNEL).addHandler(_SILENT)
    session = _unopened(address, settings)
    hops = _hops(session)
    limit_s = len(hops) * (2 * settings.connect_s + settings.login_s)
    is_late = threading.Event()
    try:
        for hop in hops:
            _prepare(hop, address, settings, key=address.key if hop is session else None)
        with _closed_after(limit_s, lambda: _close(session), is_late):
            session.open()
        for hop in hops:
            hop.transport.logged_in()
        if not session.transport.is_authenticated():
            raise LoginError(address.name, f"{session.host} demands more than a key", "allow login by key alone there")
        return ParamikoConnection(address, session, settings)
    except BaseException as error:
        failing = next((hop for hop in hops if not hop.is_connected), session)
        said = _banner(failing)
        _close(session)
        if is_late.is_set():
            at = host_and_port(failing.host, failing.port)
            raise UnreachableError(address.name, f"{at} did not let us in within {limit_s:g} s") from error
        if isinstance(error, (paramiko.SSHException, OSError, EOFError, ValueError)):
            raise with_words(_explain(error, address, failing, settings, said), said) from error
        raise


def _unopened(address: Address, settings: SshSettings) -> fabric.Connection:
    """Returns the connection, not yet open, to a machine by the jump hosts or the command that ~/.ssh/config names.

    Raises LoginError for a configuration that paramiko cannot use.
    """
    os.environ.setdefault("LOGNAME", user_name())  # paramiko fails where this user has no name
    limits = {
        "banner_timeout": settings.connect_s,
        "auth_timeout": settings.login_s,
        "channel_timeout": settings.connect_s,
        "transport_factory": partial(open_transport, settings=settings),
    }
    try:
        # Lazy: fabric's own configuration files must not change what this program does.
        config = fabric.Config(overrides={"connect_kwargs": limits}, lazy=True)
        config.load_ssh_config()
        return fabric.Connection(address.host, address.user, address.port, config)
    except (OSError, paramiko.SSHException, ValueError, LookupError, RecursionError) as error:
        if isinstance(error, OSError) and error.errno in SHORTAGES:  # of this host's, which is told elsewhere
            raise
        reason = f"paramiko cannot use the configuration of `ssh`: {type(error).__name__}: {error}"
        raise LoginError(address.name, reason, "correct ~/.ssh/config, or set ssh.transport=openssh") from error


def _hops(session: fabric.Connection) -> list[fabric.Connection]:
    """Returns the jump hosts on the way, the first one first, and the machine itself."""
    return [*(_hops(session.gateway) if isinstance(session.gateway, fabric.Connection) else []), session]


def _prepare(hop: fabric.Connection, address: Address, settings: SshSettings, key: str | None) -> None:
    """Makes a hop verify its host key and log in without prompting."""
    hop.client.set_log_channel(_LOG_CHANNEL)
    hop.connect_timeout = settings.connect_s  # which fabric makes a whole number
    files, known = _known_keys(hop, address)
    hop.client.set_missing_host_key_policy(RefuseUnknown(address.name, files, known))
    for trusted in known.trusted():
        hop.client.get_host_keys().add(target_name(hop.host, hop.port), trusted.get_name(), trusted)
    limit_s = _AGENT_SHARE * settings.login_s
    hop.config.authentication.strategy_class = partial(KeyLogin, address.name, key, limit_s)


def _known_keys(hop: fabric.Connection, address: Address) -> tuple[list[Path], KnownKeys]:
    """Returns the known-hosts files for a machine, and what they say of it."""
    files = known_hosts_files(address.known_hosts, hop.ssh_config.get("userknownhostsfile"))
    name = hop.ssh_config.get("hostkeyalias") or target_name(hop.host, hop.port)
    return files, KnownKeys(files, name)


@contextmanager
def _closed_after(
    limit_s: float, close: Callable[[], object], is_late: threading.Event | None = None
) -> Iterator[None]:
    """Ends waits that have no limit of their own, or one for each of many parts; sets ``is_late`` if it had to."""

    def end() -> None:
        if is_late is not None:
            is_late.set()
        with suppress(EOFError, OSError, paramiko.SSHException):  # it has ended by itself meanwhile
            close()

    with after(limit_s, end):
        yield


def _close(session: fabric.Connection) -> None:
    for hop in _hops(session):
        hop.client.close()


def _explain(
    error: Exception, address: Address, session: fabric.Connection, settings: SshSettings, said: str
) -> WorkerError:
    """Translates the many exceptions of a failed connection into this package's errors."""
    name, at = address.name, host_and_port(session.host, session.port)
    within = f"within {settings.connect_s:g} s"
    look = "look whether the machine is up"
    match error:
        case paramiko.BadHostKeyException():
            files, known = _known_keys(session, address)
            if known.has_revoked(error.key):
                return revoked_key(name, known.target, error.key.fingerprint)
            expected, shown = error.expected_key.fingerprint, error.key.fingerprint
            return changed_key(name, known.target, expected, shown, known.file_with(error.expected_key) or files[0])
        case AuthFailure():
            return expired(name, str(session.user), str(session.host), said) or login_error(
                name, error, session.host, session.port, said
            )
        case socket.gaierror():
            return UnknownHostError(name, f"the host name {session.host} is unknown", "correct the worker's `host`")
        case NoValidConnectionsError() if any(isinstance(one, ConnectionRefusedError) for one in error.errors.values()):
            return UnreachableError(name, f"nothing listens at {at}", look)
        case NoValidConnectionsError():
            return UnreachableError(name, f"{at} cannot be reached ({next(iter(error.errors.values()))})", look)
        case TimeoutError():
            return UnreachableError(name, f"{at} did not answer {within}", look)
        case paramiko.ChannelException():
            return UnreachableError(name, f"the jump host cannot reach {at} ({error.text})", look)
        case paramiko.ProxyCommandFailure() | FileNotFoundError():
            return UnreachableError(name, f"the ProxyCommand of ~/.ssh/config brought no connection to {at}", look)
        case paramiko.SSHException() if _gave_no_greeting(error):
            return UnreachableError(name, f"{at} accepts connections but did not greet {within}", look)
        case EOFError() | ConnectionResetError() | paramiko.SSHException() if _was_cut(error):
            return UnreachableError(
                name, f"{at} closed the connection before the login", "it may limit simultaneous logins (MaxStartups)"
            )
        case _:
            return UnreachableError(name, f"cannot connect to {at}: {error or type(error).__name__}", look)


def _banner(session: fabric.Connection) -> str:
    """Returns what the server said before the login was over."""
    # `get_banner` has nothing to say of a connection that has ended.
    heard = getattr(session.client.get_transport(), "auth_handler", None)
    return (getattr(heard, "banner", None) or b"").decode(errors="replace")


def _gave_no_greeting(error: Any) -> bool:
    # paramiko reports "No existing session" when it gave up halfway because the listener is frozen.
    timed_out = isinstance(error.__context__, TimeoutError)
    return "No existing session" in str(error) or ("banner" in str(error) and timed_out)


def _was_cut(error: Exception) -> bool:
    return isinstance(error, (EOFError, BrokenPipeError, ConnectionResetError)) or "banner" in str(error)
