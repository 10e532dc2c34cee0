"""What is wrong with a configuration, in words of its own: the key, what it must be, and the nearest valid name."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from dataclasses import fields, is_dataclass
from difflib import get_close_matches
from enum import Enum
from typing import Any, get_args, get_origin

from hydra.errors import MissingConfigException
from omegaconf.errors import ConfigTypeError, GrammarParseError, InterpolationResolutionError, ValidationError

from digirl_dist.settings.digirl_keys import KEYS, became
from digirl_dist.settings.key_places import all_keys, classes_at, fields_of, group_of
from digirl_dist.settings.keys import types_of
from digirl_dist.settings.nearest import near, nearest
from digirl_dist.settings.ranges import bounds_of, described, shown

_LISTED = 20
_ALL_KEYS = "docs/reference/settings.md has all keys"


def explained(error: Exception) -> str:
    """What Hydra says, without its internals, with the nearest valid name where a name is wrong."""
    for cause in _causes(error):
        match cause:
            case ValidationError() | ConfigTypeError() | InterpolationResolutionError() if cause.full_key:
                return _wrong_type(cause)
            case MissingConfigException(missing_cfg_file=str(option)) if "/" in option:
                group, name = option.rsplit("/", 1)
                known = [each for each in cause.options or () if not each.endswith("_schema")]
                return f"{group}: there is no {name!r}; {nearest(name, known)}"
            case GrammarParseError():
                return (
                    f"a value cannot be understood ({first_line(cause)}): ${{ begins a reference to another key and "
                    "needs a }; \\${ is no reference"
                )
    causes = [str(cause) for cause in _causes(error)]
    if wrong := re.search(r"Key '([^']+)' not in '(\w+)'(?:\s+full_key: (\S+))?", "\n".join(causes)):
        advice = digirl_key(wrong[1]) or nearest_key(wrong[1], fields_of(wrong[2]), group_of(wrong[2]))
        return f"there is no key {wrong[3] or wrong[1]!r}; {advice}"
    if named := re.search(r"Key (\S+) \(\w+\) is incompatible with \(str\)", "\n".join(causes)):
        return f"a key is {named[1]}, which is no text: keys such as on, off, yes, no and 1 need quotes in YAML"
    text = "; ".join(dict.fromkeys(cause.splitlines()[0].strip() for cause in causes))
    if misplaced := re.search(r"Merge error: \w+ is not a subclass of (\w+)\. value: (\S+)", text):
        return _no_mapping(misplaced[1], misplaced[2])
    if ambiguous := re.search(r"Ambiguous value for argument '([^=']+)=", text):
        text += f"; a list is written as {ambiguous[1]}=[a,b], one value with commas as '{ambiguous[1]}=\"a,b\"'"
    return text


def _no_mapping(class_name: str, value: str) -> str:
    """Says how a file gives what settings of a class are for, if it has a value in their place."""
    if group := group_of(class_name):
        return f"{group} is chosen in the file's defaults, as `- override {group}: {value}`; below {group} are its keys"
    named = [key for key in all_keys() if any(kind.__name__ == class_name for kind in classes_at(key))]
    return f"{'.'.join(named[0])} must be given by its keys, not {value}"


def _wrong_type(error: Any) -> str:
    """Says what is wrong with the value of a key, and what it must be."""
    key = str(error.full_key)
    *path, last = key.split(".")
    hints = [types_of(kind, include_extras=True).get(last) for kind in classes_at(path)]
    if isinstance(error, ConfigTypeError):  # a list in place of a mapping, or the other way round
        hints.append(error.object_type)
    wanted = "a whole number from 1 to 4,096, or auto" if last == "bsize" else _wanted(key, hints)
    if not wanted or isinstance(error, InterpolationResolutionError):
        return f"{key}: {first_line(error, with_key=False)[:200]}"
    if not isinstance(error, ValidationError):
        return f"{key} must be {wanted}"
    quotes = "; on, off, yes and no need quotes in YAML" if wanted == "a text" and isinstance(error.value, bool) else ""
    return f"{key} must be {wanted}, not {shown(error.value)}{quotes}"


def _wanted(key: str, hints: Sequence[Any]) -> str:
    """Returns in words what the first of some types takes; empty where there is nothing to say."""
    for hint in filter(None, hints):
        if bounds := bounds_of(hint):
            return described(bounds[0])
        for kind in (hint, *get_args(hint)):
            match get_origin(kind) or kind:
                case origin if origin is list:
                    return f"a list, as {key}=[a,b]"
                case origin if origin is dict:
                    return f"a mapping, as {key}={{a:b}}"
                case origin if origin is bool:
                    return "true or false"
                case origin if origin is str:
                    return "a text"
                case origin if isinstance(origin, type) and issubclass(origin, Enum):
                    return f"one of {', '.join(origin.__members__)}"
                case origin if is_dataclass(origin):
                    return f"given by its keys, as {key}.{fields(origin)[0].name}=…"
    return ""


def nearest_key(name: str, known: Sequence[str], group: str | None = None) -> str:
    """Asks for the nearest key: of the ``known`` ones, or one of almost that name at another place.

    The keys of other options of the ``group`` are none: ``emulator.task`` is not for every emulator.
    """
    places = [path for path in dict.fromkeys(all_keys()) if path[0] != group]
    close = get_close_matches(name, {path[-1] for path in places}, n=1, cutoff=0.8)
    if not close or close[0] in known:
        return nearest(name, known) if len(known) <= _LISTED else near(name, known) or _ALL_KEYS
    found = [repr(".".join(path)) for path in places if path[-1] == close[0]]
    return f"did you mean {' or '.join(found[:5])}?"


def _causes(error: BaseException | None) -> Iterator[BaseException]:
    while error is not None:
        yield error
        error = error.__cause__ or error.__context__


def digirl_key(key: str) -> str | None:
    """Says what DigiRL's key of that name is here; None for a key that it does not have, or that has its name here."""
    if key not in KEYS:
        return None
    places = became(key, {key: 1, "train_mode": "offline", "task_mode": "evaluate"}).settings
    if key in places:
        return None
    if not places:
        return f"DigiRL's {key} becomes something else here: `digirl-dist migrate FILE` tells what"
    return f"DigiRL's {key} is {next(iter(places))} here"


def first_line(error: BaseException, with_key: bool = True) -> str:
    """Returns the first line of what a library says, after the key that it is about, if it names one."""
    lines = str(error).splitlines() or [type(error).__name__]
    if not with_key:
        return lines[0]
    key = next((line.split(":", 1)[1].strip() for line in lines if line.strip().startswith("full_key:")), "")
    return f"{key}: {lines[0]}" if key else lines[0]
