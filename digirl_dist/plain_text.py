"""Text for terminals and files: neutralises control characters, hides secrets, and hints at names that were meant."""

from __future__ import annotations

import difflib
import os
import re
import unicodedata
from collections.abc import Collection, Iterable, Mapping, Sequence
from functools import cache
from typing import Any

HIDDEN = "***"
"""What stands for a secret."""

_STEERS = ("Cc", "Cf", "Zl", "Zp", "Cs")
"""Unicode's categories of control characters, of invisible ones (some turn the direction of writing), and of breaks."""
_WANTED = "\n\t\u200d"
"""Line breaks, tabs, and what joins emoji."""
_LEAST = 6
"""Shorter values are hidden where they have a telling name, and not wherever they occur."""
_MOST_NAMED = 30
_LEAST_LETTERS = 3
"""Characters from which on the beginning of a name stands for it, as ``gym`` for ``gymnasium``."""

_NAME = (
    r"(?:pass(?:word|wd|phrase|code)|pwd|secret|credentials?|authorization|cookie|signature|token"
    r"|(?:api|access|auth|private|secret)[-_ ]?key)"
)
_SECRET_NAME = re.compile(rf"{_NAME}$|^(?:auth|sig)$|password|passphrase|secret|authorization", re.IGNORECASE)
_ASSIGNED = re.compile(rf"""({_NAME}["']?\s*[:=]\s*["']?)((?:bearer|basic|token)\s+)?[^\s"',;&}}\]]+""", re.IGNORECASE)
_LOGIN = re.compile(r"([a-z][\w+.-]{0,30}://)([^/\s\"']+)@", re.IGNORECASE)
_SHAPES = re.compile(
    r"\b(?:sk|rk|pk)-[\w-]{16,}|\bhf_\w{16,}|\bgh[pousr]_\w{16,}|\bgithub_pat_\w{16,}|\bglpat-[\w-]{16,}"
    r"|\bxox\w-[\w-]{10,}"
    r"|\bAKIA[0-9A-Z]{16}\b|\bAIza[\w-]{30,}|\bpypi-[\w-]{16,}|\beyJ[\w-]{8,1000}\.[\w-]+\.[\w-]+"
    r"|(?<=Bearer )[\w.~+/=-]{8,}|(?<=Basic )[\w+/=-]{8,}"
    r"|-----BEGIN [A-Z ]*PRIVATE KEY-----.*?(?:-----END [A-Z ]*PRIVATE KEY-----|\Z)",
    re.DOTALL,
)
_HEADERS = ("authorization", "cookie", "x-api-key", "api-key")
_known: set[str] = set()
"""Secret values of this process, wherever they occur."""


def printable(text: str) -> str:
    """Returns ``text`` without secrets and with escape sequences and the like made visible, as ``\\\\x1b``."""
    return "".join(
        character
        if character in _WANTED or unicodedata.category(character) not in _STEERS
        else character.encode("unicode_escape").decode()
        for character in without_secrets(text)
    )


def one_line(text: str) -> str:
    """Returns the same on one line, so that what others say cannot pass for lines of ours."""
    return printable(text).replace("\n", "\\n").replace("\t", " ")


def in_short(error: BaseException, longest: int = 200) -> str:
    """Returns the beginning of what an error says, with single blanks between its words."""
    return " ".join(str(error).split())[:longest]


def host_and_port(host: str, port: int) -> str:
    """Returns ``HOST:PORT``, or ``[IPv6]:PORT``."""
    return f"[{host}]:{port}" if ":" in host else f"{host}:{port}"


def without_secrets(text: str) -> str:
    """Returns ``text`` with passwords of URLs, values with telling names, well-known tokens and known values hidden."""
    for value in sorted({*_known, *_of_environment()}, key=len, reverse=True):
        text = text.replace(value, HIDDEN)
    text = _LOGIN.sub(_hide_login, text)
    return _SHAPES.sub(HIDDEN, _ASSIGNED.sub(rf"\1\2{HIDDEN}", text))


def without_secrets_in(value: Any) -> Any:
    """Returns plain data, as JSON has it, with all secrets hidden: by names of keys, and by shape."""
    if isinstance(value, Mapping):
        return {key: _entry(str(key), entry) for key, entry in value.items()}
    if isinstance(value, list | tuple):
        names = [None, *value][: len(value)]
        return [
            HIDDEN if isinstance(each, str) and _names_a_secret(name) else without_secrets_in(each)
            for name, each in zip(names, value, strict=True)
        ]
    return without_secrets(value) if isinstance(value, str) else value


def hide(values: Iterable[str]) -> None:
    """Hides these values from now on wherever they occur, unless they are very short."""
    _known.update(value for value in values if len(value) >= _LEAST)


def secrets_of(value: Any) -> set[str]:
    """Returns the values in plain data whose keys tell that they are secrets."""
    if isinstance(value, Mapping):
        named = {entry for key, entry in value.items() if isinstance(entry, str) and is_secret_name(str(key))}
        return named.union(*map(secrets_of, value.values()))
    return set().union(*map(secrets_of, value)) if isinstance(value, list | tuple) else set()


def is_secret_name(name: str) -> bool:
    """Returns whether what has this name is a secret, such as ``apiKey`` or ``Authorization``; max_tokens is none."""
    return _SECRET_NAME.search(name) is not None


def _entry(key: str, entry: Any) -> Any:
    """A number of tokens is no secret, and neither is a special token of a language model, such as ``</s>``."""
    harmless = entry in (None, "") or isinstance(entry, bool | Mapping) or str(entry)[:1] in ("<", "[")
    return HIDDEN if is_secret_name(key) and not harmless else without_secrets_in(entry)


def _names_a_secret(word: Any) -> bool:
    """Whether the word before a word is an option or a header that tells that it is a secret."""
    return isinstance(word, str) and (word[:1] == "-" or word.lower() in _HEADERS) and is_secret_name(word)


def _hide_login(found: re.Match[str]) -> str:
    """A name alone is a token in a URL of the web, and elsewhere just a name."""
    scheme, login = found.groups()
    harmless = ":" not in login and "http" not in scheme.lower()
    return found[0] if harmless else f"{scheme}{HIDDEN}@"


@cache
def _of_environment() -> frozenset[str]:
    """Paths are none, such as that in PWD."""
    named = (value for name, value in os.environ.items() if is_secret_name(name))
    return frozenset(value for value in named if len(value) >= 8 and value[0] != "/")


def as_unicode(text: str) -> str:
    """Returns ``text`` with a question mark for each half of a surrogate pair, which UTF-8 lacks."""
    return text.encode(errors="replace").decode()


def is_unicode(text: str) -> bool:
    """Returns whether UTF-8 has it."""
    return as_unicode(text) == text


def as_entry_point(text: str) -> str:
    """Returns the entry point that a file's name stands for: ``my_file:X`` for ``./my_file.py:X``.

    Where no name of a module leads from the working directory to the file, it is said from where one does.
    """
    file, _, name = text.partition(":")
    path = os.path.relpath(os.path.expanduser(file.removesuffix(".py") or "my_file"))
    folder, module = os.path.split(os.path.abspath(path))
    where = f" and run the command in {folder}, or with PYTHONPATH={folder}" if "/" in file and "." in path else ""
    return f"{module if where else path.replace('/', '.')}:{name or 'Mine'}{where}"


def nearest(name: str, known: Sequence[str]) -> str:
    """Asks for the nearest of the ``known`` names, or lists them where none is near."""
    return near(name, known) or f"there are {', '.join(known[:_MOST_NAMED])}{', …' * (len(known) > _MOST_NAMED)}"


def near(name: str, known: Sequence[str]) -> str:
    """Asks for the nearest of the ``known`` names; empty if none is near."""
    found = closest(name, known)
    return f"did you mean {found!r}?" if found else ""


def near_it(name: str, known: Collection[str]) -> str:
    """Returns the ending of a message that names up to three of ``known``; empty if none is near."""
    found = difflib.get_close_matches(name, known, n=3, cutoff=0.5)
    return f"; near it are {', '.join(found)}" if found else ""


def closest(name: str, known: Sequence[str]) -> str:
    """Returns the nearest of the ``known`` names; empty if none is near."""
    spelled, word = {each.lower(): each for each in known}, name.lower()
    longer = [each for each in spelled if len(word) >= _LEAST_LETTERS and each.startswith(word)]
    found = difflib.get_close_matches(word, spelled, n=1) or (longer if len(longer) == 1 else [])
    return spelled[found[0]] if found else ""
