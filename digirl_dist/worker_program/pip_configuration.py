"""What installations heed of a machine's configuration of pip and uv: where packages come from, never where they go.

Imports the standard library only: this file runs on workers before the package is installed there.
"""

from __future__ import annotations

import configparser
import os
import re
import shutil
import sys
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from urllib.parse import urlsplit

_SOURCES = re.compile(
    r"(?:extra-)?index-url|no-index|find-links|trusted-host|proxy|(?:client-)?cert|(?:default-)?timeout|retries"
    r"|resume-retries|(?:no-)?cache-dir|keyring-provider|use-feature|use-deprecated|only-binary|no-binary|prefer-binary"
)
"""pip's options that say from where and how packages come."""
_SOURCES_OF_UV = re.compile(
    r"(?:DEFAULT_|EXTRA_)?INDEX(?:_URL)?|INDEX_\w+_(?:USERNAME|PASSWORD)|NO_INDEX|FIND_LINKS|(?:NO_)?CACHE(?:_DIR)?|OFFLINE"
    r"|\w*TIMEOUT|HTTP_\w+|NATIVE_TLS|SYSTEM_CERTS|INSECURE_HOST|KEYRING_PROVIDER|LINK_MODE|CONCURRENT_\w+|CONFIG_FILE"
)
_INDEX = re.compile(r"(-i|--(?:extra-)?index-url(?=$|=))=?(.*)")
_PUBLIC = "pypi.org"


def environment(environ: Mapping[str, str]) -> dict[str, str]:
    """Returns the environment of installations, by which pip reads no file of its own.

    Options such as ``target``, ``user``, ``prefix`` or ``require-hashes``, which would have pip install elsewhere or
    refuse what the host sends, are left out, as are variables for other Pythons. Raises ValueError for a file of pip
    that cannot be read.
    """
    kept = {name: value for name, value in environ.items() if _counts(name)}
    for name, value in _configured(environ).items():
        kept.setdefault(f"PIP_{name.upper().replace('-', '_')}", value)
    return {**kept, "PIP_CONFIG_FILE": os.devnull}


def path_of_uv() -> str | None:
    """Returns where uv is: on PATH, or where its own installer puts it, which is not on that of a command over SSH."""
    places = [os.environ.get("PATH", os.defpath), *(str(Path.home() / each) for each in (".local/bin", ".cargo/bin"))]
    return shutil.which("uv", path=os.pathsep.join(places))


def indexes_for_uv(words: Sequence[str]) -> list[str]:
    """Returns pip's arguments for uv: of the named indexes, the first that has a fitting version counts.

    They count in their order, PyPI last: a package of a private index is never replaced by a public one of its name.
    uv asks extra indexes before the main one, whatever their order is.
    """
    rest, indexes, has_main, left = list[str](), list[str](), False, iter(words)
    for word in left:
        if found := _INDEX.fullmatch(word):
            indexes.append(found[2] or next(left, ""))
            has_main |= found[1] != "--extra-index-url"
        else:
            rest.append(word)
    indexes.sort(key=lambda url: (urlsplit(url).hostname or "").endswith(_PUBLIC))
    main = ["--index-url", indexes.pop()] if has_main else []
    return [*rest, *(word for url in indexes for word in ("--extra-index-url", url)), *main]


def _counts(name: str) -> bool:
    if name.startswith("PIP_"):
        return _SOURCES.fullmatch(name[4:].lower().replace("_", "-")) is not None
    if name.startswith("UV_"):
        return _SOURCES_OF_UV.fullmatch(name[3:]) is not None
    return not name.startswith("PYTHON")


def _configured(environ: Mapping[str, str]) -> dict[str, str]:
    """Returns the options of pip's files that count, by name; those of the section ``install`` prevail."""
    parsers = []
    for path in _files(environ):
        parser = configparser.RawConfigParser()
        try:
            with suppress(OSError):
                parser.read_string(path.read_text(errors="replace"))
        except configparser.Error as error:
            raise ValueError(f"{path} cannot be read: {' '.join(str(error).split())}") from error
        parsers.append(parser)
    found = {}
    for section in ("global", "install"):
        for parser in parsers:
            for name, value in parser.items(section) if parser.has_section(section) else ():
                found[name.lower().replace("_", "-").removeprefix("--")] = value
    return {name: value for name, value in found.items() if _SOURCES.fullmatch(name)}


def _files(environ: Mapping[str, str]) -> Iterator[Path]:
    """Yields the files that pip reads, in its order: those of the system, the user, this Python, and the named one."""
    named = environ.get("PIP_CONFIG_FILE", "")
    if named == os.devnull:
        return
    for folder in reversed(environ.get("XDG_CONFIG_DIRS", "/etc/xdg").split(os.pathsep)):
        yield Path(folder) / "pip" / "pip.conf"
    yield Path("/etc/pip.conf")
    yield Path("~/.pip/pip.conf").expanduser()
    yield Path(environ.get("XDG_CONFIG_HOME") or "~/.config").expanduser() / "pip" / "pip.conf"
    yield Path(sys.prefix) / "pip.conf"
    if named:
        yield Path(named).expanduser()
