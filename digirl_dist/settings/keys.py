"""The keys of the configuration, as the settings classes have them."""

from __future__ import annotations

import re
from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass, fields, is_dataclass
from enum import Enum
from functools import cache
from typing import Any, get_type_hints

from digirl_dist.errors import SettingsError
from digirl_dist.types import Json

_KEY = re.compile(r"[\w\-+.$%*@?|/\\()\[\]{}:=, \t]+", re.ASCII)
_OTHER_KINDS = re.compile(
    r"\s*(null|true|false|[+-]?[_.]*[0-9][0-9_.]*(e[+-]?[0-9_]+)?|[+-]?(inf|nan))\s*", re.IGNORECASE
)


@dataclass(frozen=True)
class Key:
    """One value of a configuration."""

    name: str
    """With dots, such as ``limits.boot_s``."""
    hint: Any
    """Its type, with what ``Annotated`` adds."""
    value: Any


def keys_of(settings: Any, prefix: str = "") -> Iterator[Key]:
    """Yields every key of ``settings``, a dataclass, and of the dataclasses in it."""
    hints = types_of(type(settings), include_extras=True)
    for each in fields(settings):
        value = getattr(settings, each.name)
        if is_dataclass(value):
            yield from keys_of(value, f"{prefix}{each.name}.")
        else:
            yield Key(f"{prefix}{each.name}", hints[each.name], value)


def types_of(kind: Any, include_extras: bool = False) -> dict[str, Any]:
    """Returns the type of each field of a dataclass."""
    return _types_of(kind, include_extras)


@cache
def _types_of(kind: Any, include_extras: bool) -> dict[str, Any]:
    hints = get_type_hints(kind, include_extras=include_extras)
    return {each.name: hints[each.name] for each in fields(kind)}


def key_of(override: str) -> str:
    """Returns the key that an override of the command line is about: of ``++a.b@c=1`` it is ``a.b``."""
    return override.lstrip("+~").partition("=")[0].partition("@")[0]


def is_below(key: str, block: str) -> bool:
    """Returns whether a dotted key is ``block``, or one of the keys in the block of that name."""
    return f"{key}.".startswith(f"{block}.")


def flat(value: Json, key: str = "", whole: Collection[str] = ()) -> Iterator[tuple[str, Json]]:
    """Yields the values of nested mappings by dotted key; those at the keys of ``whole`` stay as they are."""
    if isinstance(value, Mapping) and value and key not in whole:
        for name, entry in value.items():
            yield from flat(entry, f"{key}.{name}".lstrip("."), whole)
    else:
        yield key, value


def written(value: Any) -> str:
    """Returns a value in the grammar of Hydra's overrides; a class or function stands for its import path."""
    match value:
        case None:
            return "null"
        case Enum():
            return value.name
        case bool() | int() | float():
            return str(value).lower()
        case Mapping():
            return "{" + ",".join(f"{_key(key)}:{written(each)}" for key, each in value.items()) + "}"
        case list() | tuple():
            return "[" + ",".join(map(written, value)) + "]"
        case str():
            return quoted(value)
        case _ if callable(value):
            return f"'{value.__module__}:{value.__qualname__}'"
        case _ if hasattr(value, "tolist"):  # of NumPy or torch
            return written(value.tolist())
    return quoted(str(value))


def _key(key: Any) -> str:
    """Returns a key of a mapping: in Hydra's grammar it is never in quotes, but may hold escaped signs.

    Raises SettingsError for a key that the grammar lacks, or takes for another kind than a text.
    """
    if not isinstance(key, str) or not _KEY.fullmatch(key) or _OTHER_KINDS.fullmatch(key):
        raise SettingsError(
            f"the key {key!r:.100} of a mapping cannot be given here: keys are texts of ASCII letters, digits, blanks "
            "and -+.$%*@?|/\\()[]{}:=, and no numbers; write it in a YAML file"
        )
    return re.sub(r"[\\()\[\]{}:=, \t]", r"\\\g<0>", key)


def quoted(text: str) -> str:
    """Returns a text as an override takes it literally.

    In Hydra's grammar a backslash is one, except before a quote; OmegaConf's ``${`` would refer to a key.
    """
    escaped = re.sub(r"(\\*)(?='|$)", r"\1\1", text.replace("${", "\\${")).replace("'", "\\'")
    return f"'{escaped}'"
