"""Host keys: refuses a machine whose key is unknown or has changed, and names the command that would accept it."""

from __future__ import annotations

import fnmatch
import re
import shlex
from collections.abc import Sequence
from pathlib import Path

import paramiko

from digirl_dist.errors import HostKeyError

_SYSTEM_FILE = "/etc/ssh/ssh_known_hosts"
_USER_FILE = "~/.ssh/known_hosts"
_REVOKED = "@revoked"
_NO_FILES = ("/dev/null", "none")


def known_hosts_files(only: str | None, from_ssh_config: str | None) -> list[Path]:
    """Returns the known-hosts files to read: ``only`` that one if given, else those that ``ssh`` would read."""
    if only is not None:
        return [Path(only).expanduser()]
    # In a name that ``UserKnownHostsFile`` lists, a blank is followed by no ``/`` or ``~``.
    listed = re.split(r"\s+(?=[/~\"])", (from_ssh_config or _USER_FILE).strip())
    return [*(Path(name.strip('"')).expanduser() for name in listed), Path(_SYSTEM_FILE)]


class KnownKeys:
    """What files in the format of OpenSSH's known_hosts say about one machine.

    Lines about other machines, certificate authorities, and lines that nobody can read say nothing about it.
    """

    def __init__(self, files: Sequence[Path], target: str) -> None:
        """``target`` is ``host`` or ``[host]:port``."""
        self.target = target
        self._revoked: set[bytes] = set()
        self._keys: dict[str, tuple[paramiko.PKey, Path]] = {}
        for file in files:
            if file.is_file():
                for line in file.read_text(errors="replace").splitlines():
                    self._read(line.split(), file)

    def trusted(self) -> list[paramiko.PKey]:
        """Of each kind the first that was not revoked."""
        return [key for key, _ in self._keys.values() if not self.has_revoked(key)]

    def file_with(self, key: paramiko.PKey) -> Path | None:
        """Returns the first file that has a key of that kind for the machine."""
        return self._keys.get(key.get_name(), (key, None))[1]

    def has_revoked(self, key: paramiko.PKey) -> bool:
        return key.asbytes() in self._revoked

    def _read(self, words: list[str], file: Path) -> None:
        revokes = words[:1] == [_REVOKED]
        entry = _entry(words[1:] if revokes else words)
        if entry is None:
            return
        if revokes and _matches(self.target, entry.hostnames or [], patterns=True):
            self._revoked.add(entry.key.asbytes())
        elif not revokes and _matches(self.target, entry.hostnames or [], patterns=False):
            self._keys.setdefault(entry.key.get_name(), (entry.key, file))


def _entry(words: Sequence[str]) -> paramiko.hostkeys.HostKeyEntry | None:
    """A line of known_hosts; None if it is a comment, of another kind, or broken."""
    if len(words) < 3 or words[0].startswith(("#", "@")):
        return None
    try:
        entry = paramiko.hostkeys.HostKeyEntry.from_line(" ".join(words))
    except Exception:  # paramiko raises what the key's own parts raise
        return None
    return entry if entry is not None and entry.key is not None else None


def _matches(target: str, names: Sequence[str], patterns: bool) -> bool:
    """Whether a line is about a machine. ``patterns``: also by ``*`` and ``?``, which nothing is trusted for."""
    if any(name.startswith("!") and fnmatch.fnmatchcase(target, name[1:]) for name in names):
        return False
    for name in names:
        if name.startswith("|1|"):
            if _is_hash_of(target, name):
                return True
        elif name == target or (patterns and fnmatch.fnmatchcase(target.lower(), name.lower().replace("[", "[[]"))):
            return True
    return False


def _is_hash_of(target: str, name: str) -> bool:
    try:
        return bool(paramiko.HostKeys.hash_host(target, name) == name)
    except (AssertionError, ValueError):  # paramiko's words for a hash that is none
        return False


def revoked_key(worker: str, target: str, fingerprint: str) -> HostKeyError:
    """Returns the error for a machine whose key known_hosts forbids."""
    return HostKeyError(
        worker,
        f"{target} shows the host key {fingerprint}, which is marked as revoked: it may be somebody else's machine",
        "if it is the right one, give it new host keys",
    )


def unknown_key(
    worker: str, target: str, fingerprint: str, kind: str, files: Sequence[Path], shown_by: str
) -> HostKeyError:
    """Returns the error for a machine whose key none of ``files`` knows; it names the command that adds the key.

    ``target`` is the name that they have for it, ``shown_by`` the machine itself, in their notation.
    """
    short = next((known for known in ("ed25519", "ecdsa", "rsa") if known in kind), kind)
    file = next((file for file in files if str(file) not in (*_NO_FILES, _SYSTEM_FILE)), None)
    reads = "" if file else "take `UserKnownHostsFile` out of its part of ~/.ssh/config, which names no file, and "
    scan = f"ssh-keyscan -t {short} {_scan_target(shown_by)}"
    if shown_by != target:
        scan += f" | sed {shlex.quote(f's|^[^ ]*|{target}|')}"
    return HostKeyError(
        worker,
        f"{shown_by} shows the unknown host key {fingerprint} ({short})",
        f"{reads}add it with `{scan} >> {shlex.quote(str(file)) if file else _USER_FILE}`, but "
        f"first compare the fingerprint with the one that `ssh-keygen -lf /etc/ssh/ssh_host_{short}_key.pub` "
        "prints on that machine",
    )


def changed_key(worker: str, target: str, expected: str, shown: str, file: Path) -> HostKeyError:
    """Returns the error for a machine whose key differs from ``file``; ``target`` is ``host`` or ``[host]:port``."""
    return HostKeyError(
        worker,
        f"the host key of {target} has changed from {expected} to {shown}: possible man-in-the-middle attack",
        f"if the machine was reinstalled, forget the old key with `ssh-keygen -f {shlex.quote(str(file))} "
        f"-R {shlex.quote(target)}`",
    )


class RefuseUnknown(paramiko.MissingHostKeyPolicy):
    """Refuses unknown host keys; the error names the command that adds the key to one of ``files``."""

    def __init__(self, worker: str, files: Sequence[Path], known: KnownKeys) -> None:
        self._worker = worker
        self._files = files
        self._known = known

    def missing_host_key(self, client: paramiko.SSHClient, hostname: str, key: paramiko.PKey) -> None:
        """Raises HostKeyError; ``hostname`` is ``host`` or ``[host]:port``."""
        if self._known.has_revoked(key):
            raise revoked_key(self._worker, hostname, key.fingerprint)
        raise unknown_key(
            self._worker, self._known.target, key.fingerprint, key.get_name(), self._files, shown_by=hostname
        )


def target_name(host: str, port: int) -> str:
    """Returns a machine's name in the notation of known-hosts files."""
    return host if port == 22 else f"[{host}]:{port}"


def _scan_target(hostname: str) -> str:
    if not hostname.startswith("["):
        return hostname
    host, port = hostname[1:].rsplit("]:", 1)
    return f"-p {port} {host}"
