"""Takes the logins out of pip's arguments: on a worker, everybody can read the arguments of every process."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from urllib.parse import unquote

from digirl_dist.errors import SettingsError
from digirl_dist.plain_text import hide, without_secrets_in

_LOGIN = re.compile(r"(?<![\w+])(https?://)([^/\s@]+(?:@[^/\s@]+)*)@(\[[^]\s]+\]|[^/\s:]+)")
_PROXY = "--proxy"


@dataclass(frozen=True)
class PipArgs:
    """Arguments that everybody may read, and what goes to a file or a variable that only the user can read."""

    words: tuple[str, ...] = ()
    netrc: str = ""
    """Lines of a .netrc file, which pip and uv read."""
    proxy: str = ""
    """The URL of a proxy with a login."""

    def __repr__(self) -> str:
        return f"PipArgs({self.words})"


def split_logins(args: Sequence[str], key: str = "install.pip_args") -> PipArgs:
    """Returns arguments of pip with their logins apart. Raises SettingsError, naming ``key``, for another secret."""
    words, proxy = _without_proxy(args)
    netrc = "".join(_netrc_line(key, *found) for word in words for found in _LOGIN.findall(word))
    plain = tuple(_LOGIN.sub(r"\1\3", word) for word in words)
    for word, shown in zip(plain, without_secrets_in(list(plain)), strict=True):
        if word != shown:
            raise SettingsError(
                f"{key}: {shown} would show its secret to everybody on the workers (ps); "
                "put it into pip.conf or .netrc there, or into the URL of an index (https://user:password@…)"
            )
    return PipArgs(plain, netrc, proxy)


def _without_proxy(args: Sequence[str]) -> tuple[list[str], str]:
    words, proxy, rest = [], "", iter(args)
    for word in rest:
        value = word.partition("=")[2] if word.startswith(f"{_PROXY}=") else next(rest, "") if word == _PROXY else None
        if value is None:
            words.append(word)
        elif "@" in value:
            proxy = value
        else:
            words += [_PROXY, value]
    return words, proxy


def _netrc_line(key: str, _scheme: str, login: str, host: str) -> str:
    user, _, password = login.partition(":")
    values = [unquote(user), unquote(password)]
    hide(value for value in (login, *values) if value)
    if any(re.search(r"[\s\"'\\#]", value) for value in values):
        raise SettingsError(
            f"{key}: the login for {host} has spaces, quotes, # or \\, which no .netrc file takes; "
            "put it into pip.conf on the workers"
        )
    return f"machine {host.strip('[]')} login {values[0]} password {values[1] or chr(34) * 2}\n"
