"""Host keys: refuses a machine whose key is unknown or has changed, and names the command that would accept it."""

from __future__ import annotations

import shlex
from pathlib import Path

import paramiko

from digirl_dist.errors import HostKeyError

_SYSTEM_FILE = "/etc/ssh/ssh_known_hosts"
_USER_FILE = "~/.ssh/known_hosts"


def known_hosts_files(only: str | None, from_ssh_config: str | None) -> list[Path]:
    """Returns the known-hosts files to read: ``only`` that one if given, else those that ``ssh`` would read."""
    if only is not None:
        return [Path(only).expanduser()]
    users = from_ssh_config.split() if from_ssh_config else [_USER_FILE]
    return [Path(path).expanduser() for path in (*users, _SYSTEM_FILE)]


class RefuseUnknown(paramiko.MissingHostKeyPolicy):
    """Refuses unknown host keys; the error names the command that adds the key to ``file``."""

    def __init__(self, worker: str, file: Path) -> None:
        self._worker = worker
        self._file = file

    def missing_host_key(self, client: paramiko.SSHClient, hostname: str, key: paramiko.PKey) -> None:
        """Raises HostKeyError; ``hostname`` is ``host`` or ``[host]:port``."""
        kind = _short_kind(key)
        raise HostKeyError(
            self._worker,
            f"{hostname} shows the unknown host key {key.fingerprint} ({kind})",
            f"add it with `ssh-keyscan -t {kind} {_scan_target(hostname)} >> {shlex.quote(str(self._file))}`, but "
            f"first compare the fingerprint with the one that `ssh-keygen -lf /etc/ssh/ssh_host_{kind}_key.pub` "
            "prints on that machine",
        )


def changed_key(worker: str, target: str, error: paramiko.BadHostKeyException, file: Path) -> HostKeyError:
    """Returns the error for a machine whose key differs from ``file``; ``target`` is ``host`` or ``[host]:port``."""
    return HostKeyError(
        worker,
        f"the host key of {target} has changed from {error.expected_key.fingerprint} to "
        f"{error.key.fingerprint}: possible man-in-the-middle attack",
        f"if the machine was reinstalled, forget the old key with `ssh-keygen -f {shlex.quote(str(file))} "
        f"-R {shlex.quote(target)}` and start again",
    )


def target_name(host: str, port: int) -> str:
    """Returns a machine's name in the notation of known-hosts files."""
    return host if port == 22 else f"[{host}]:{port}"


def _short_kind(key: paramiko.PKey) -> str:
    name = key.get_name()
    return next((kind for kind in ("ed25519", "ecdsa", "rsa") if kind in name), name)


def _scan_target(hostname: str) -> str:
    if not hostname.startswith("["):
        return hostname
    host, port = hostname[1:].rsplit("]:", 1)
    return f"-p {port} {host}"
