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
from digirl_dist.ssh.host_keys import KnownKeys, changed_key, revoked_key, target_name, unknown_key
from digirl_dist.ssh.login import ASK_AGENT, CLOSED_TO, expired, locked, refused_login, with_words

_AT = re.compile(r"^debug1: Authenticating to (\S+):(\d{1,5}) as '(.*)'$", re.MULTILINE)
_CONNECTING = re.compile(r"^debug1: Connecting to (\S+) \[\S*\] port (\d{1,5})\.$", re.MULTILINE)
_KEY = re.compile(r"^debug1: Server host key: (\S+) (SHA256:\S+)$", re.MULTILINE)
_OFFERED = re.compile(r"^debug1: Offering public key: (.+) (\S+) (SHA256:\S+)(?: (.*))?$", re.MULTILINE)
_UNRESOLVED = re.compile(r"Could not resolve hostname (\S+?):")
_NO_ROUTE = re.compile(r"connect to host \S+ port \d+: (No route to host|Network is unreachable|Host is down)")
_FORWARD = re.compile(r"channel 0: open failed: (.*)")
_FORWARDED = re.compile(r"^debug1: channel_connect_stdio_fwd: (\S+):(\d{1,5})$", re.MULTILINE)
_UNKNOWN_AS = re.compile(
    r"^No \S+ host key is known for ([\w.:[\]-]+) and you have requested strict checking", re.MULTILINE
)
_CHANGED_AS = re.compile(
    r"^Host key for ([\w.:[\]-]+) has changed and you have requested strict checking", re.MULTILINE
)
_OFFENDING = re.compile(r"^Offending \S+ key in (.+):\d+$", re.MULTILINE)
_BY_COMMAND = "debug1: Executing proxy command: "
_BY_JUMP = "debug1: Setting implicit ProxyCommand from ProxyJump"
_COMMAND_ENDED = re.compile(r"^(?:kex_exchange_identification: .*|.* UNKNOWN port .*)$", re.MULTILINE)
_TOO_MANY = "Too many authentication failures"
_ACCEPTED = re.compile(r"^debug1: Server accepts key: (.*)$", re.MULTILINE)
_LOAD_KEY = re.compile(r"^Load key \"(.+)\": (.*)$", re.MULTILINE)
_OWN_WORDS = re.compile(r"Connection |.*@.*: Permission denied|Received disconnect|Disconnected |Load key ")
_NOISE = re.compile(r"^(debug\d: .*|OpenSSH_.*|Authenticated to .*|Transferred: .*|Bytes per second: .*|)$")


@dataclass(frozen=True)
class Target:
    """A machine as ``ssh -G`` resolves it, the word for it in the settings, and its known-hosts files."""

    host: str
    port: int
    user: str
    asked_for: str
    known_hosts: Sequence[Path]


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
    said = _banner(log)
    if error := expired(address.name, user, host, said):
        return error
    if "Permission denied (" in log or _TOO_MANY in log:
        return with_words(_login(log, address.name, user, host, port, notes), said)
    if found := _UNRESOLVED.search(log):
        return UnknownHostError(address.name, f"the host name {found[1]} is unknown", "correct the worker's `host`")
    within = f"within {settings.connect_s:g} s"
    look = f"look whether the machine is up and `ssh {target.asked_for}` works"
    return with_words(UnreachableError(address.name, *_unreachable(log, host_and_port(host, port), within, look)), said)


def unfinished(log: str, address: Address, target: Target, limit_s: float, agent_path: str) -> WorkerError:
    """Returns the error for an ``ssh`` that is not logged in after ``limit_s``: what it waits for, if that is known.

    ``agent_path`` is the socket of the SSH agent that it asks; empty: it asks none.
    """
    host, port, _ = _hop(log, target)
    at, within = host_and_port(host, port), f"within {limit_s:g} s"
    if _by_command(log) and "Remote protocol version" not in log:
        reason, remedy = f"the ProxyCommand of ~/.ssh/config brought no connection to {at}", "look what it waits for"
    elif (accepted := _last(_ACCEPTED, log)) and accepted[0].endswith(" agent"):
        reason, remedy = f"the SSH agent at SSH_AUTH_SOCK={agent_path} did not sign for {at}", ASK_AGENT
    else:
        reason, remedy = f"{at} did not let us in", f"look whether `ssh {target.asked_for}` does"
        remedy += f", and whether the SSH agent answers ({ASK_AGENT})" if agent_path else ""
    return with_words(UnreachableError(address.name, f"{reason} {within}", remedy), _banner(log))


def _by_command(log: str) -> bool:
    return _BY_COMMAND in log and _BY_JUMP not in log


def _banner(log: str) -> str:
    """Returns what the machine said between the beginning of the login and its end."""
    _, begun, login = log.rpartition("debug1: Authenticating to ")
    lines = [line.strip() for line in login.splitlines()[1:]] if begun else []
    return "\n".join(line for line in lines if not _NOISE.match(line) and not _OWN_WORDS.match(line))


def _unreachable(log: str, at: str, within: str, look: str) -> tuple[str, str]:
    """Returns the reason and the remedy."""
    if found := _FORWARD.search(log):
        to, port = _last(_FORWARDED, log) or (at, "")
        return f"the jump host cannot reach {host_and_port(to, int(port)) if port else at} ({found[1]})", look
    if _by_command(log) and "during banner exchange" in log:
        return f"the ProxyCommand of ~/.ssh/config brought no connection to {at} {within}", look
    if _by_command(log) and _COMMAND_ENDED.search(log) and not _AT.search(log):
        said = last_words(_COMMAND_ENDED.sub("", log))
        return f"the ProxyCommand of ~/.ssh/config brought no connection to {at}: {said}", look
    if "Connection refused" in log:
        return f"nothing listens at {at}", look
    if found := _NO_ROUTE.search(log):
        return f"{at} cannot be reached ({found[1]})", look
    if "timed out during banner exchange" in log or "during the banner exchange" in log:
        return f"{at} accepts connections but did not greet {within}", look
    if "timed out" in log or "not responding" in log:
        return f"{at} did not answer {within}", look
    if "closed by" in log or "reset by" in log:
        if _ACCEPTED.search(log):
            return f"{at} accepted the key, and then closed the connection", CLOSED_TO
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
    if "REVOKED HOST KEY" in log:
        return revoked_key(address.name, name, shown)
    if "REMOTE HOST IDENTIFICATION HAS CHANGED" in log:
        name, offending = _word(_CHANGED_AS, log) or name, _word(_OFFENDING, log)
        file = Path(offending).expanduser() if offending else target.known_hosts[0]
        return changed_key(address.name, name, _expected([file], name, kind), shown, file)
    return unknown_key(address.name, _word(_UNKNOWN_AS, log) or name, shown, kind, target.known_hosts, shown_by=name)


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
    found = [
        locked(path) if "passphrase" in why else f"{path} cannot be used: {why}" for path, why in _LOAD_KEY.findall(log)
    ]
    if _TOO_MANY in log:
        found.append("it hears no more than so many: name the right one as the worker's `key`")
    return refused_login(worker, user, host, port, offered, files, list(dict.fromkeys([*notes, *found])))


def _last(pattern: re.Pattern[str], log: str) -> tuple[str, ...] | None:
    found = [match.groups() for match in pattern.finditer(log)]
    return found[-1] if found else None


def _word(pattern: re.Pattern[str], log: str) -> str | None:
    found = _last(pattern, log)
    return found[0] if found else None
