"""From plain mappings to settings: types, ranges and unknown keys are checked here, and nowhere else."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import fields, is_dataclass
from difflib import get_close_matches
from typing import Any, get_args, get_origin

import msgspec

from digirl_dist.errors import SettingsError
from digirl_dist.plain_text import closest, near, nearest, without_secrets_in
from digirl_dist.settings import Settings
from digirl_dist.settings.digirl_keys import KEYS, became
from digirl_dist.settings.hints import as_question, choice, instead_of, word_of_the_field
from digirl_dist.settings.key_places import Place, all_keys, class_of, group_of, options_of_groups, unknown_keys
from digirl_dist.settings.keys import types_of
from digirl_dist.settings.plugins import ALGORITHM
from digirl_dist.settings.ranges import in_words, shown
from digirl_dist.types import Json, T

_LISTED = 20
_TRUTH = {"yes": True, "on": True, "no": False, "off": False}
"""What YAML has for truth values, and the command line not."""
_ALL_KEYS = "docs/reference/settings.md has the usual keys, and `digirl-dist settings` all"


def converted(kind: type[T], content: Mapping[str, Json]) -> T:
    """Returns settings of a class, with defaults for what ``content`` lacks. Raises SettingsError naming the key."""
    for place in unknown_keys(kind, content):
        raise SettingsError(f"there is no key {'.'.join(map(str, place))!r}{_instead(kind, content, place)}")
    return _built(kind, content)


def merged(settings: T, overrides: Mapping[str, Json], where: str) -> T:
    """Returns ``settings`` with some values replaced and checked. Raises SettingsError saying ``where``."""
    try:
        return converted(type(settings), _laid_over(msgspec.to_builtins(settings), overrides))
    except SettingsError as error:
        raise SettingsError(f"{where}: {error}") from error


def as_mapping(settings: Any) -> dict[str, Any]:
    """Returns settings, or a part of them, as plain data, secrets hidden."""
    plain: dict[str, Any] = without_secrets_in(msgspec.to_builtins(settings))
    return plain


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


def nearest_key(name: str, known: Sequence[str], group: str | None = None) -> str:
    """Asks for the nearest key: of the ``known`` ones, or one of almost that name at another place.

    The keys of other options of the ``group`` are none: ``emulator.task`` is not for every emulator.
    """
    places = list(dict.fromkeys(place for place, _ in all_keys() if place[0] != group))
    close = get_close_matches(name, {place[-1] for place in places}, n=1, cutoff=0.8)
    if not close or close[0] in known:
        return nearest(name, known) if len(known) <= _LISTED else near(name, known) or _ALL_KEYS
    found = [repr(".".join(place)) for place in places if place[-1] == close[0]]
    return f"did you mean {' or '.join(found[:5])}?"


def meant_key(name: str, value: Json, algorithm: str = "") -> str:
    """Suggests what an unknown top-level key may mean: a key of DigiRL's or another tool's, a choice, a near key."""
    first, *below = name.split(".")
    if (spelled := (closest(first, list(types_of(Settings))), *below)) in (place for place, _ in all_keys() if below):
        return as_question(".".join(spelled))
    if first in ALGORITHM.names():
        return as_question(f"algorithm.{name}")
    if word := word_of_the_field(name, algorithm or Settings().train_algorithm, value):
        return as_question(word)
    if meant := choice(value) if isinstance(value, str) else "":
        return f"did you mean {meant}?"
    return digirl_key(name) or nearest_key(name, list(types_of(Settings)))


def _built(kind: type[T], content: Mapping[str, Json], above: str = "") -> T:
    hints = types_of(kind, include_extras=True)
    return kind(**{key: _value(f"{above}{key}", hints[key], given) for key, given in content.items()})


def _value(key: str, hint: Any, given: Json) -> Any:
    """Returns the value of one key. Raises SettingsError that says what it must be."""
    kind = class_of(hint, given)
    if kind is not None and isinstance(given, Mapping):
        return _built(kind, given, f"{key}.")
    if (group := group_of(hint)) is not None:
        raise SettingsError(_chosen(group, given))
    if hint is bool:
        given = _TRUTH.get(given, given) if isinstance(given, str) else given
    for value, strict in ((given, False), (_as_texts(given), True)):
        with suppress(msgspec.ValidationError):
            return msgspec.convert(value, hint, strict=strict)
    wanted = in_words(hint)
    quotes = "; on, off, yes and no need quotes in YAML" if isinstance(given, bool) and "text" in wanted else ""
    meant = choice(given, unless=key) if isinstance(given, str) and "number" not in wanted else ""
    hinted = f"; did you mean {meant}?" if meant else ""
    raise SettingsError(f"{key} must be {wanted}{_example(key, hint, given)}, not {shown(given)}{quotes}{hinted}")


def _as_texts(given: Json) -> Json:
    """Returns a number, or the numbers of a list, as text: YAML reads an unquoted 12 as a number."""
    if isinstance(given, list):
        return [_as_texts(each) for each in given]
    return str(given) if isinstance(given, int | float) and not isinstance(given, bool) else given


def _example(key: str, hint: Any, given: Json) -> str:
    one = given if isinstance(given, str) and re.fullmatch(r"[\w.:/@+-]{1,60}", given) else "a,b"
    kinds = {get_origin(kind) for kind in (hint, *get_args(hint))}
    below = f", as {key}.{fields(hint)[0].name}=…" if is_dataclass(hint) else ""
    return f", as {key}=[{one}]" if list in kinds else f", as {key}={{a:b}}" if dict in kinds else below


def _instead(kind: type, content: Mapping[str, Json], place: Place) -> str:
    """Returns what may be meant by a key that is not there."""
    (*path, name), whole = place, kind is Settings
    for step in path:
        kind, content = class_of(types_of(kind)[step], content[step]) or kind, content[step]
    group = path[0] if path and path[0] in options_of_groups() else None
    if not isinstance(name, str):
        return ", as keys are texts: on, off, yes, no and numbers need quotes in YAML"
    if not whole:
        return f"; {nearest(name, list(types_of(kind)))}"
    readers = [each for each, option in options_of_groups().get(group or "", {}).items() if name in types_of(option)]
    if readers:
        how = f"add {group}={readers[0]}, or `- override {group}: {readers[0]}` to the defaults of a file"
        return f" with {group}={content['name']}: {group}={' or '.join(readers)} has it; {how}"
    if not path:
        return f"; {meant_key(name, content[name])}"
    algorithm = next((each for each in path if each in ALGORITHM.names()), Settings().train_algorithm)
    word, close = word_of_the_field(name, algorithm), near(name, list(types_of(kind)))
    meant = close if close and not word.startswith(f"{path[0]}.") else as_question(word)
    return f"; {meant or nearest_key(name, list(types_of(kind)), group)}"


def _chosen(group: str, given: Json) -> str:
    """Says how an option is chosen, where something else stands in its place."""
    options = sorted(options_of_groups()[group])
    name = given.get("name") if isinstance(given, Mapping) else given
    if name not in options:
        return f"{group}: there is no {name!r:.80}; {instead_of(group, str(name)) or nearest(str(name), options)}"
    return f"{group} is chosen in the file's defaults, as `- override {group}: {name}`; below {group} are its keys"


def _laid_over(base: Mapping[str, Json], above: Mapping[str, Json]) -> dict[str, Json]:
    """Returns one mapping over another, and so below them."""
    inner = {
        key: _laid_over(base[key], value)
        for key, value in above.items()
        if isinstance(value, Mapping) and isinstance(base.get(key), Mapping)
    }
    return {**base, **above, **inner}
