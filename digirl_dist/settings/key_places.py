"""Where the keys of a configuration stand: its groups, the options of each, and the settings class of each option."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import is_dataclass
from functools import cache
from typing import Any, get_origin

from digirl_dist import settings as schema
from digirl_dist.settings import Settings
from digirl_dist.settings.algorithms import AlgorithmSettingsBase, algorithm_settings
from digirl_dist.settings.keys import types_of
from digirl_dist.settings.plugins import ALGORITHM, KINDS, settings_classes
from digirl_dist.types import Json

_TRAINERS: dict[str, type] = {
    "inprocess": schema.InProcessSettings,
    "torchrun": schema.TorchrunSettings,
}
_ENGINES: dict[str, type] = {
    "openai": schema.OpenAIEngineSettings,
    "transformers": schema.TransformersEngineSettings,
}

Place = tuple[str, ...]
"""A key of the configuration, with those above it."""


@cache
def options_of_groups() -> dict[str, dict[str, type]]:
    """Returns what each option group chooses from, with the settings class of each option."""
    found = {kind.name: settings_classes(kind) for kind in KINDS if kind is not ALGORITHM}
    return {**found, "engine": _ENGINES, "trainer": _TRAINERS}


@cache
def free_keys() -> tuple[str, ...]:
    """Returns the keys whose values are mappings without a schema."""
    return tuple(dict.fromkeys(".".join(place) for place, hint in all_keys() if get_origin(hint) is dict))


def class_of(hint: Any, value: Any) -> type | None:
    """Returns the settings class of a key of type ``hint``: of a group's, that of the option that ``value`` names.

    None for the key of a value, and where there is no such option.
    """
    if hint is AlgorithmSettingsBase:
        return algorithm_settings()
    if (group := group_of(hint)) is not None:
        return options_of_groups()[group].get(str(value.get("name"))) if isinstance(value, Mapping) else None
    return hint if isinstance(hint, type) and is_dataclass(hint) else None


def unknown_keys(kind: type, content: Mapping[str, Json], above: Place = ()) -> Iterator[Place]:
    """Yields the keys in ``content`` that the settings class ``kind``, and those below it, do not have."""
    hints = types_of(kind)
    for key, value in content.items():
        place = (*above, key)
        if key not in hints:
            yield place
        elif isinstance(value, Mapping) and (inner := class_of(hints[key], value)) is not None:
            yield from unknown_keys(inner, value, place)


def classes_at(path: Sequence[str]) -> list[type]:
    """Returns the settings classes that may stand at a place of the configuration, such as ``limits``, or none."""
    level: list[type] = [Settings]
    for step in path:
        hints = [types_of(kind).get(step) for kind in level]
        level = [kind for hint in hints for kind in _classes(hint)]
    return level


def all_keys(*path: str) -> Iterator[tuple[Place, Any]]:
    """Yields all keys of the configuration below a place of it, with their types."""
    for kind in classes_at(path):
        for name, hint in types_of(kind).items():
            yield (*path, name), hint
            if _classes(hint):
                yield from all_keys(*path, name)


def _classes(hint: Any) -> list[type]:
    """Returns the settings classes that a key of this type may have."""
    if (group := group_of(hint)) is not None:
        return list(options_of_groups()[group].values())
    found = class_of(hint, None)
    return [] if found is None else [found]


def group_of(hint: Any) -> str | None:
    """Returns the group whose options all derive from this class."""
    return next((name for name in options_of_groups() if types_of(Settings)[name] is hint), None)
