"""Login by key alone: never prompts at the terminal; a refusal lists the keys that were offered."""

from __future__ import annotations

import os
import re
from collections.abc import Iterator, Sequence
from contextlib import closing
from pathlib import Path
from typing import Any, cast

import paramiko
from paramiko.agent import AgentSSH, get_agent_connection
from paramiko.auth_strategy import AuthFailure, AuthSource, AuthStrategy, InMemoryPrivateKey

from digirl_dist.errors import LoginError, UnreachableError, WorkerError
from digirl_dist.plain_text import host_and_port, printable

_DEFAULT_KEYS = ("~/.ssh/id_ed25519", "~/.ssh/id_ecdsa", "~/.ssh/id_rsa")
_CLOSED = "transport shut down"
"""In what paramiko says of a server that hung up in place of an answer."""
CLOSED_TO = "see whether it lets anybody in (/etc/nologin), or this account (`sudo chage -l`, its PAM configuration)"
ASK_AGENT = "`ssh-add -l` asks it; `unset SSH_AUTH_SOCK` does without it"
_NO_KEY = "this is not a private key that can be read"


class KeyFile(InMemoryPrivateKey):
    """A private key from the file ``path``."""

    def __init__(self, username: str, path: str) -> None:
        super().__init__(username, paramiko.PKey.from_path(path))
        self.path = path

    def __repr__(self) -> str:
        return self.path


class AgentKey(InMemoryPrivateKey):
    """A private key that the SSH agent holds."""

    def __repr__(self) -> str:
        return f"agent key {self.pkey.fingerprint}"


class KeyLogin(AuthStrategy):
    """Offers only ``key`` if given, else the keys of ~/.ssh/config, of the agent, and the default files, in that order.

    A ``key`` with a passphrase cannot be opened without prompting, so the agent's keys are offered in its place.
    """

    def __init__(
        self, worker: str, key: str | None, limit_s: float, ssh_config: Any, fabric_config: Any, username: str
    ) -> None:
        """``limit_s``: for each answer of the agent."""
        super().__init__(ssh_config)
        self.username = username
        self.notes: list[str] = []
        self._worker = worker
        self._key = key
        self._limit_s = limit_s
        self._identity_files: list[str] = ssh_config.get("identityfile", [])

    def get_sources(self) -> Iterator[AuthSource]:
        if self._key is not None:
            named = self._file(self._key, must_exist=True)
            if named:
                yield named
            else:
                yield from self._agent_keys()
            return
        yield from self._files(self._identity_files)
        yield from self._agent_keys()
        yield from self._files(_DEFAULT_KEYS)

    def _files(self, paths: Any) -> Iterator[AuthSource]:
        for path in paths:
            if source := self._file(path, must_exist=False):
                yield source

    def _file(self, path: str, must_exist: bool) -> KeyFile | None:
        """Returns the key in ``path``; None if it is missing, or None and a note if it is locked or no key."""
        full = os.path.expanduser(path)
        try:
            return KeyFile(self.username, full)
        except OSError as error:
            if must_exist:
                raise bad_key(self._worker, full, str(error.strerror)) from error
            if not isinstance(error, FileNotFoundError):
                self.notes.append(f"{full} cannot be used: {error.strerror}")
        except (TypeError, paramiko.PasswordRequiredException):
            self.notes.append(locked(full))
        except (ValueError, paramiko.SSHException, paramiko.pkey.UnknownKeyType) as error:
            if must_exist:
                raise bad_key(self._worker, full, _NO_KEY) from error
            self.notes.append(f"{full} cannot be used: {_NO_KEY}")
        return None

    def _agent_keys(self) -> Iterator[AuthSource]:
        try:
            held = _Agent(self._limit_s)
        except (OSError, paramiko.SSHException):
            self.notes.append(f"the SSH agent did not answer within {self._limit_s:g} s ({ASK_AGENT})")
            return
        with closing(held):
            yield from (AgentKey(self.username, key) for key in held.get_keys())


class _Agent(paramiko.Agent):
    """paramiko's, each of whose answers may take ``limit_s``: it may be stopped, or wait for a person."""

    def __init__(self, limit_s: float) -> None:
        """Asks for its keys; there are none where there is no agent. Raises OSError."""
        AgentSSH.__init__(self)
        if (there := get_agent_connection()) is not None:
            there.settimeout(limit_s)
            self._connect(there)  # type: ignore[attr-defined]


def bad_key(worker: str, path: str, reason: str) -> LoginError:
    """Returns the error for a key file that is missing or not a key."""
    return LoginError(
        worker,
        f"the key file {path} cannot be used: {reason}",
        f"name another one in the worker's `key`, or make one with `ssh-keygen -t ed25519 -f {path}`",
    )


def check_key_file(worker: str, key: str | None) -> list[str]:
    """Returns notes on a named key, such as that a passphrase locks it.

    Raises LoginError if the file is missing or holds no private key of any kind, those on security tokens included.
    """
    if key is None:
        return []
    path = os.path.expanduser(key)
    try:
        with open(path, "rb") as file:
            if b"PRIVATE KEY-----" not in file.read(100):
                raise bad_key(worker, path, _NO_KEY)
        paramiko.PKey.from_path(path)
    except OSError as error:
        raise bad_key(worker, path, str(error.strerror)) from error
    except (TypeError, paramiko.PasswordRequiredException):
        return [locked(path)]
    except (ValueError, paramiko.SSHException, paramiko.pkey.UnknownKeyType):
        pass  # OpenSSH reads more kinds of keys
    return []


_EXPIRED = re.compile(r"(?:password|account).{0,60}expired|password change required", re.IGNORECASE | re.DOTALL)
_SHOWN = 300


def expired(worker: str, user: str, host: str, said: str) -> LoginError | None:
    """Returns the error for an account that the machine calls expired; None if it says nothing of the kind."""
    if not _EXPIRED.search(said):
        return None
    reason = f"the account of user {user}, or its password, has expired; the machine says {said[-_SHOWN:]!r}"
    remedy = f"change it at a terminal (`ssh -t {user}@{host}`), or lift its limits there"
    return LoginError(worker, reason, f"{remedy} (`sudo chage -l {user}`, `sudo chage -M -1 -E -1 {user}`)")


def with_words(error: WorkerError, banner: str) -> WorkerError:
    """Returns the error for a failed login with what the machine said: why it lets nobody in, perhaps."""
    said = printable(banner.strip())
    if not said or not isinstance(error, LoginError | UnreachableError):
        return error
    return type(error)(error.worker, f"{error.reason}; the machine says {said[-_SHOWN:]!r}", error.remedy)


def locked(path: str) -> str:
    """Returns what to say of a key that a passphrase locks."""
    return f"{path} is locked by a passphrase: unlock it with `ssh-add {path}`"


def login_error(worker: str, failure: AuthFailure, host: str, port: int, said: str) -> WorkerError:
    """Returns the error for ``failure``: UnreachableError if the link broke, LoginError if the keys were refused.

    ``said`` is what the machine said meanwhile.
    """
    strategy = cast(KeyLogin, failure.result.strategy)
    refused = [tried for tried in failure.result if isinstance(tried.result, paramiko.AuthenticationException)]
    broken = [tried.result for tried in failure.result if tried not in refused]
    if said and any(_CLOSED in str(tried.result) for tried in refused):  # without a word, it hears no more keys
        return UnreachableError(
            worker, f"{host_and_port(host, port)} closed the connection during the login", CLOSED_TO
        )
    if (broken and not refused) or any("timeout" in str(tried.result).lower() for tried in refused):
        return UnreachableError(worker, f"{host_and_port(host, port)} went silent during the login")
    offered = [tried.source for tried in refused]
    files = [source.path for source in offered if isinstance(source, KeyFile)]
    return refused_login(worker, strategy.username, host, port, [repr(one) for one in offered], files, strategy.notes)


def refused_login(
    worker: str, user: str, host: str, port: int, offered: Sequence[str], files: Sequence[str], notes: Sequence[str]
) -> LoginError:
    """Returns the error for a machine that accepts no key; ``files`` are those of the keys offered."""
    at = host_and_port(host, port)
    reason = f"{at} does not let user {user} in; keys offered: {', '.join(offered) or 'none: no key was found'}"
    key = f" -i {files[0]}" if files and Path(files[0] + ".pub").exists() else ""
    make = "" if offered else "make a key with `ssh-keygen -t ed25519`, then "
    command = f"ssh-copy-id{key}{'' if port == 22 else f' -p {port}'} {user}@{host}"
    remedy = f"{make}allow the key with `{command}`, or set the worker's `username` or `key`"
    if offered:
        remedy += (
            "; if its authorized_keys has the key, sshd ignores that file where others may write to it, ~/.ssh or the "
            "home folder (its log: `bad ownership or modes`): `chmod go-w ~ ~/.ssh ~/.ssh/authorized_keys` there"
        )
    return LoginError(worker, "; ".join([reason, *notes]), remedy)
