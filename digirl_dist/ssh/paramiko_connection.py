"""Connections that paramiko carries, with an explanation for every failure."""

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

from digirl_dist.errors import LoginError, UnknownHostError, UnreachableError, WorkerError
from digirl_dist.plain_text import host_and_port
from digirl_dist.settings import SshSettings
from digirl_dist.ssh import agent
from digirl_dist.ssh.agent import SilentAgent
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
from digirl_dist.ssh.paramiko_channel import ParamikoChannel
from digirl_dist.ssh.proxy_command import ProxyCommand
from digirl_dist.ssh.user_config import Known, jumps, options, read, told
from digirl_dist.ssh.wire import Transport, Watch, open_transport

_LOG_CHANNEL = "digirl_dist.ssh.paramiko"
_SILENT = logging.NullHandler()
_ANSWER_S = 3.0
_AGENT_SHARE = 0.8
"""The share of the time for an answer to a login that the SSH agent may take for each of its own."""


class Session(fabric.Connection):  # type: ignore[misc]  # fabric has no types
    """fabric's connection, but for how it runs a ``ProxyCommand``."""

    proxy: ProxyCommand | None = None

    def open_gateway(self) -> Any:
        if not isinstance(self.gateway, str):
            return super().open_gateway()
        self.proxy = ProxyCommand(self.gateway)
        return self.proxy


class ParamikoConnection(Connection):
    """A ``Connection`` that is encrypted in this process."""

    def __init__(self, address: Address, session: Session, settings: SshSettings) -> None:
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
        slowest = 1024 * self._settings.slowest_kb_s
        return ParamikoChannel(raw, self.worker, line, self._settings.stall_s, slowest)

    def close(self) -> None:
        self._watch.stop()
        _close(self._session)


def connect_by_paramiko(address: Address, settings: SshSettings) -> Connection:
    """Connects to a machine whose host key is known, and logs in with a key.

    Raises HostKeyError, LoginError (both fatal) or UnreachableError.
    """
    logging.getLogger(_LOG_CHANNEL).addHandler(_SILENT)
    session = _session(address, settings)
    limit_s = _hops(session) * (2 * settings.connect_s + settings.login_s)
    is_late = threading.Event()
    try:
        _prepare(session, address, settings)
        with _closed_after(limit_s, lambda: _close(session), is_late):
            session.open()
        _trust(session)
        if not session.transport.is_authenticated():
            raise LoginError(address.name, f"{session.host} demands more than a key", "allow login by key alone there")
        return ParamikoConnection(address, session, settings)
    except BaseException as error:
        failing = _failing_hop(session)
        said = _banner(failing)
        _close(session)
        if is_late.is_set():
            at = host_and_port(failing.host, failing.port)
            raise UnreachableError(address.name, f"{at} did not let us in within {limit_s:g} s") from error
        if isinstance(error, (paramiko.SSHException, OSError, EOFError, ValueError)):
            raise with_words(_explain(error, address, failing, settings, said), said) from error
        raise


def _session(address: Address, settings: SshSettings) -> Session:
    """Returns fabric's connection, not yet open, with those to the jump hosts that ~/.ssh/config names."""
    os.environ.setdefault("LOGNAME", user_name())  # paramiko fails where this user has no name
    with told(address.name):
        return _way(read(), settings, address.host, address.user, address.port)


def _way(
    config: paramiko.SSHConfig,
    settings: SshSettings,
    host: str,
    user: str | None,
    port: int | None,
    to: tuple[str, ...] = (),
    behind: Session | None = None,
) -> Session:
    """Returns a machine's connection, by the jump hosts that lead to it if it is not ``behind`` one that is reached.

    ``to`` are those that it is itself on the way to. Raises ValueError for a way that leads in a circle.
    """
    if host in to:
        raise ValueError(f"ProxyJump leads from {host} to itself")
    known = options(config, host)
    hops = jumps(known)
    gateway = behind or known.get("proxycommand")
    # a jump host that is named for all hosts is reached as it is
    if behind is None and not {hop for _, hop, _ in hops} & {host, known["hostname"]}:
        for their_user, hop, their_port in hops:
            reached = gateway if isinstance(gateway, Session) else None
            gateway = _way(config, settings, hop, their_user, their_port, (*to, host), reached)
    limits = {
        "banner_timeout": settings.connect_s,
        "auth_timeout": settings.login_s,
        "channel_timeout": settings.connect_s,
        "transport_factory": partial(open_transport, settings=settings),
    }
    # Lazy: fabric's own configuration files must not change what this program does.
    own = fabric.Config(overrides={"connect_kwargs": limits}, lazy=True, ssh_config=Known(known))
    session = Session(host, user, port, own, gateway or False, False, settings.connect_s)
    session.connect_timeout = settings.connect_s  # which fabric makes a whole number
    return session


def _prepare(session: Session, address: Address, settings: SshSettings) -> None:
    """Makes the session and its jump hosts verify host keys and log in without prompting."""
    session.client.set_log_channel(_LOG_CHANNEL)
    files, known = _known_keys(session, address)
    session.client.set_missing_host_key_policy(RefuseUnknown(address.name, files, known))
    for key in known.trusted():
        session.client.get_host_keys().add(target_name(session.host, session.port), key.get_name(), key)
    session.config.authentication.strategy_class = partial(
        KeyLogin, address.name, address.key, _AGENT_SHARE * settings.login_s
    )
    if isinstance(session.gateway, Session):
        hop = Address(address.name, session.gateway.host, known_hosts=address.known_hosts)
        _prepare(session.gateway, hop, settings)


def _known_keys(session: Session, address: Address) -> tuple[list[Path], KnownKeys]:
    """Returns the known-hosts files for a machine, and what they say of it."""
    files = known_hosts_files(address.known_hosts, session.ssh_config.get("userknownhostsfile"))
    name = session.ssh_config.get("hostkeyalias") or target_name(session.host, session.port)
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

    timer = threading.Timer(limit_s, end)
    timer.daemon = True
    timer.start()
    try:
        yield
    finally:
        timer.cancel()


def _trust(session: Session) -> None:
    session.transport.logged_in()
    if isinstance(session.gateway, Session):
        _trust(session.gateway)


def _hops(session: Session) -> int:
    return 1 + (_hops(session.gateway) if isinstance(session.gateway, Session) else 0)


def _close(session: Session) -> None:
    session.client.close()
    if session.proxy is not None:
        session.proxy.close()
    if isinstance(session.gateway, Session):
        _close(session.gateway)


def _failing_hop(session: Session) -> Session:
    """Returns the first jump host that could not be reached, or the session itself."""
    gateway = session.gateway
    if isinstance(gateway, Session) and not gateway.is_connected:
        return _failing_hop(gateway)
    return session


def _explain(error: Exception, address: Address, session: Session, settings: SshSettings, said: str) -> WorkerError:
    """Translates the many exceptions of a failed connection into this package's errors."""
    name, at = address.name, host_and_port(session.host, session.port)
    within = f"within {settings.connect_s:g} s"
    look = f"look whether the machine is up and `ssh {session.original_host}` works"
    match error:
        case paramiko.BadHostKeyException():
            files, known = _known_keys(session, address)
            if known.has_revoked(error.key):
                return revoked_key(name, known.target, error.key.fingerprint)
            expected, shown = error.expected_key.fingerprint, error.key.fingerprint
            return changed_key(name, known.target, expected, shown, known.file_with(error.expected_key) or files[0])
        case SilentAgent():
            return UnreachableError(name, str(error), agent.REMEDY)
        case AuthFailure():
            return expired(name, str(session.user), str(session.host), said) or login_error(
                name, error, session.host, session.port, said
            )
        case socket.gaierror():
            return UnknownHostError(name, f"the host name {session.host} is unknown", "correct the worker's `host`")
        case NoValidConnectionsError() if not any(map(_refused, error.errors.values())):
            return UnreachableError(name, f"{at} cannot be reached ({next(iter(error.errors.values()))})", look)
        case NoValidConnectionsError():
            return UnreachableError(name, f"nothing listens at {at}", look)
        case TimeoutError():
            return UnreachableError(name, f"{at} did not answer {within}", look)
        case paramiko.ChannelException():
            return UnreachableError(name, f"the jump host cannot reach {at} ({error.text})", look)
        case paramiko.SSHException() if _gave_no_greeting(error) and session.proxy is not None:
            reason = f"the ProxyCommand of ~/.ssh/config brought no greeting of {at} {within}"
            return UnreachableError(name, reason, look)
        case paramiko.SSHException() if _gave_no_greeting(error):
            return UnreachableError(name, f"{at} accepts connections but did not greet {within}", look)
        case EOFError() | OSError() | paramiko.SSHException() if _was_cut(error) and session.proxy is not None:
            how = session.proxy.ended()
            return UnreachableError(
                name, f"the ProxyCommand of ~/.ssh/config brought no connection to {at}: {how}", look
            )
        case EOFError() | ConnectionResetError() | paramiko.SSHException() if _was_cut(error):
            return UnreachableError(
                name, f"{at} closed the connection before the login", "it may limit simultaneous logins (MaxStartups)"
            )
        case _:
            return UnreachableError(name, f"cannot connect to {at}: {error or type(error).__name__}", look)


def _banner(session: Session) -> str:
    """Returns what the server said before the login was over."""
    transport = session.client.get_transport()
    heard = getattr(transport, "auth_handler", None)  # `get_banner` has nothing to say of a connection that has ended
    return (getattr(heard, "banner", None) or b"").decode(errors="replace")


def _gave_no_greeting(error: Any) -> bool:
    # paramiko reports "No existing session" when it gave up halfway because the listener is frozen.
    timed_out = isinstance(error.__context__, TimeoutError)
    return "No existing session" in str(error) or ("banner" in str(error) and timed_out)


def _refused(error: Exception) -> bool:
    return isinstance(error, ConnectionRefusedError)


def _was_cut(error: Exception) -> bool:
    return isinstance(error, (EOFError, BrokenPipeError, ConnectionResetError)) or "banner" in str(error)
