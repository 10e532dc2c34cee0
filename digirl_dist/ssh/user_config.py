"""What ~/.ssh/config says of a machine, as paramiko reads it; every way to be wrong is told as one error."""

from __future__ import annotations

import glob
import os
import re
import shlex
import subprocess
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import paramiko

from digirl_dist.errors import SHORTAGES, LoginError, UnreachableError
from digirl_dist.ssh import local_command

_CONFIGS = ("~/.ssh/config", "/etc/ssh/ssh_config")
_CONFIGURED_S = local_command.CONFIGURED_S
_DEEPEST = 16
_BLOCK = re.compile(r"\s*(?:host|match)\b", re.IGNORECASE)
_INCLUDE = re.compile(r"\s*include(?:\s*=\s*|\s+)(.*)", re.IGNORECASE)
_CRITERIA, _CRITERIA_WITH_WORDS = ("all", "canonical", "final"), ("exec", "host", "localuser", "originalhost", "user")
_JUMP = re.compile(r"(?:ssh://)?(?:(.+)@)?(\[[^]]+\]|[^:]+|[^:]*:[^:]*:.*?)(?::(\d+))?/?")


class _Config(paramiko.SSHConfig):
    """paramiko would wait for the commands of ``Match exec`` without end, and let them read the user's terminal."""

    def _does_match(self, match_list: Any, target_hostname: Any, canonical: Any, final: Any, options: Any) -> Any:
        others = [each for each in match_list if each["type"] != "exec"]
        matched = super()._does_match(others, target_hostname, canonical, final, options)  # type: ignore[misc]
        if others and not matched:
            return matched
        for each in match_list:
            if each["type"] == "exec":
                line = self._tokenize(options, target_hostname, "match-exec", each["param"])  # type: ignore[attr-defined]
                status, _, _ = local_command.ended(["/bin/sh", "-c", line], _CONFIGURED_S)
                if (status == 0) is bool(each["negate"]):
                    return []
        return match_list


def read() -> paramiko.SSHConfig:
    """Returns the user's and the system's settings; a file that is missing counts as empty.

    Raises OSError, ValueError or paramiko's error for what cannot be read.
    """
    config = _Config()
    for path in map(Path, _CONFIGS):
        config.parse(_lines(path.expanduser(), path.expanduser().parent, 0))
    return config


def _lines(path: Path, among: Path, depth: int) -> Iterator[str]:
    """Yields a file's lines with those of the files ``among`` others that it includes; paramiko passes over them.

    After them, what is said belongs to the ``Host`` or ``Match`` that it stands below, as for ``ssh``.
    """
    if depth > _DEEPEST:
        raise ValueError(f"too many levels of Include at {path}")
    try:
        text = path.read_text(errors="replace")  # `ssh` takes any encoding, too
    except (FileNotFoundError, NotADirectoryError, IsADirectoryError):
        return
    block = ""
    for line in text.splitlines():
        if _BLOCK.match(line):
            block = _known_block(line)
        if not (found := _INCLUDE.match(line)):
            yield line
            continue
        for pattern in shlex.split(found[1]):
            for included in sorted(glob.glob(os.path.join(among, os.path.expanduser(pattern)))):
                yield from _lines(Path(included), among, depth + 1)
                yield block


def _known_block(line: str) -> str:
    """Returns a line with ``Host`` or ``Match``. Raises ValueError for criteria that paramiko would take as met."""
    keyword, *words = shlex.split(line.replace("=", " ", 1))
    while keyword.lower() == "match" and words:
        criterion = words.pop(0).lower().lstrip("!")
        if criterion in _CRITERIA_WITH_WORDS:
            del words[:1]
        elif criterion not in _CRITERIA:
            raise ValueError(f"it knows no `Match {criterion}`")
    return line


class Known:
    """One machine's options in the place of a whole configuration."""

    def __init__(self, options: dict[str, Any]) -> None:
        self._options = options

    def lookup(self, host: str) -> dict[str, Any]:
        return self._options


def options(config: paramiko.SSHConfig, host: str) -> dict[str, Any]:
    """Returns a machine's options by their names in lower case, without those that are none. May raise as ``read``."""
    found = config.lookup(host)
    int(found.get("port", 22))
    return {name: value for name, value in found.items() if value is not None and str(value).lower() != "none"}


@contextmanager
def told(worker: str) -> Iterator[None]:
    """Turns the many exceptions of a configuration that paramiko cannot use into a LoginError."""
    try:
        yield
    except subprocess.TimeoutExpired as error:
        reason = f"a command of ~/.ssh/config did not end within {_CONFIGURED_S:g} s"
        raise UnreachableError(worker, reason, "look at `Match exec` in ~/.ssh/config") from error
    except OSError as error:
        if error.errno in SHORTAGES:  # of this host's, which is told elsewhere
            raise
        raise _unusable(worker, error) from error
    except (paramiko.SSHException, ValueError, LookupError) as error:
        raise _unusable(worker, error) from error


def _unusable(worker: str, error: Exception) -> LoginError:
    reason = f"paramiko cannot use the configuration of `ssh`: {type(error).__name__}: {error}"
    return LoginError(worker, reason, "correct ~/.ssh/config, or set ssh.transport=openssh")


def jumps(known: Mapping[str, Any]) -> list[tuple[str | None, str, int | None]]:
    """Returns user, host and port of each jump host on the way to a machine, the first one first.

    Raises ValueError for what is none.
    """
    return [_jump(each.strip()) for each in known.get("proxyjump", "").split(",") if each]


def _jump(text: str) -> tuple[str | None, str, int | None]:
    if not (found := _JUMP.fullmatch(text)):
        raise ValueError(f"ProxyJump names no machine: {text}")
    user, host, port = found.groups()
    return user, host.strip("[]"), int(port) if port else None
