"""What the log of ``ssh -v`` tells: which machine refused and why, in this package's errors."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import paramiko

from digirl_dist.errors import HostKeyError, UnknownHostError, UnreachableError, WorkerError
from digirl_dist.plain_text import host_and_port
from digirl_dist.settings import SshSettings
from digirl_dist.ssh.connection import Address
from digirl_dist.ssh.host_keys import KnownKeys, changed_key, known_hosts_files, revoked_key, target_name, unknown_key
from digirl_dist.ssh.login import locked, refused_login

_AT = re.compile(r"^debug1: Authenticating to (\S+):(\d{1,5}) as '(.*)'$", re.MULTILINE)
_CONNECTING = re.compile(r"^debug1: Connecting to (\S+) \[\S*\] port (\d{1,5})\.$", re.MULTILINE)
_KEY = re.compile(r"^debug1: Server host key: (\S+) (SHA256:\S+)$", re.MULTILINE)
_OFFERED = re.compile(r"^debug1: Offering public key: (.+) (\S+) (SHA256:\S+)(?: (.*))?$", re.MULTILINE)
_UNRESOLVED = re.compile(r"Could not resolve hostname (\S+?):")
_NO_ROUTE = re.compile(r"connect to host \S+ port \d+: (No route to host|Network is unreachable|Host is down)")
_FORWARD = re.compile(r"channel 0: open failed: (.*)")
_NOISE = re.compile(r"^(debug\d: .*|OpenSSH_.*|Authenticated to .*|Transferred: .*|Bytes per second: .*|)$")


@dataclass(frozen=True)
class Target:
    """A machine as ``ssh -G`` resolves it, the word for it in the settings, and the first of its known-hosts files."""

    host: str
    port: int
    user: str
    asked_for: str
    known_hosts: Path | None


def fingerprint(log: str) -> str:
    """Returns the fingerprint and kind of the last host key in the log, which is that of the last hop."""
    kind, shown = _last(_KEY, log) or ("unknown", "unknown")
    return f"{shown} ({kind})"


def last_words(log: str) -> str:
    """Returns the last line that is not of the debug log."""
    said = [line.strip() for line in log.splitlines() if not _NOISE.match(line.strip())]
    return said[-1] if said else "`ssh` ended without a word"


def explain(log: str, address: Address, target: Target, settings: SshSettings, notes: Sequence[str]) -> WorkerError:
    """Returns the error for an ``ssh`` that ended before it was logged in; ``notes`` are about its keys."""
    host, port, user = _hop(log, target)
    if "Host key verification failed" in log or "REVOKED HOST KEY" in log:
        return _host_key(log, address, target, host, port)
    if "Permission denied (" in log:
        return _login(log, address.name, user, host, port, notes)
    if found := _UNRESOLVED.search(log):
        return UnknownHostError(address.name, f"the host name {found[1]} is unknown", "correct the worker's `host`")
    within = f"within {settings.connect_s:g} s"
    look = f"look whether the machine is up and `ssh {target.asked_for}` works"
    return UnreachableError(address.name, *_unreachable(log, host_and_port(host, port), within, look))


def _unreachable(log: str, at: str, within: str, look: str) -> tuple[str, str]:
    """Returns the reason and the remedy."""
    if found := _FORWARD.search(log):
        return f"the jump host cannot reach {at} ({found[1]})", look
    if "Connection refused" in log:
        return f"nothing listens at {at}", look
    if found := _NO_ROUTE.search(log):
        return f"{at} cannot be reached ({found[1]})", look
    if "timed out during banner exchange" in log or "during the banner exchange" in log:
        return f"{at} accepts connections but did not greet {within}", look
    if "timed out" in log or "not responding" in log:
        return f"{at} did not answer {within}", look
    if "closed by" in log or "reset by" in log:
        return f"{at} closed the connection before the login", "it may limit simultaneous logins (MaxStartups)"
    return f"cannot connect to {at}: {last_words(log)}", look


def _hop(log: str, target: Target) -> tuple[str, int, str]:
    """Returns host, port and user of the machine that was spoken to last."""
    if at := _last(_AT, log):
        return at[0], int(at[1]), at[2]
    if at := _last(_CONNECTING, log):
        return at[0], int(at[1]), target.user
    return target.host, target.port, target.user


def _host_key(log: str, address: Address, target: Target, host: str, port: int) -> HostKeyError:
    kind, shown = _last(_KEY, log) or ("unknown", "unknown")
    name = target_name(host, port)
    file = target.known_hosts or Path("~/.ssh/known_hosts").expanduser()
    if "REVOKED HOST KEY" in log:
        return revoked_key(address.name, name, shown)
    if "REMOTE HOST IDENTIFICATION HAS CHANGED" in log:
        return changed_key(address.name, name, _expected(known_hosts_files(str(file), None), name, kind), shown, file)
    return unknown_key(address.name, name, shown, kind, file)


def _expected(files: Sequence[Path], name: str, kind: str) -> str:
    """Returns the fingerprint that known_hosts has, of the same kind if possible."""
    keys: list[paramiko.PKey] = KnownKeys(files, name).trusted()
    keys.sort(key=lambda key: key.get_name() != kind)
    return keys[0].fingerprint if keys else "another key"


def _login(log: str, worker: str, user: str, host: str, port: int, notes: Sequence[str]) -> WorkerError:
    start = log.rfind("debug1: Authenticating to ")
    tried = [found.groups() for found in _OFFERED.finditer(log, max(start, 0))]
    offered = [f"agent key {shown}" if source == "agent" else path for path, _, shown, source in tried]
    files = [path for path, _, _, source in tried if source != "agent"]
    found = [locked(path) for path in files if f'Load key "{path}"' in log]
    return refused_login(worker, user, host, port, offered, files, list(dict.fromkeys([*notes, *found])))


def _last(pattern: re.Pattern[str], log: str) -> tuple[str, ...] | None:
    found = pattern.findall(log)
    return found[-1] if found else None
