"""Where the keys of a configuration stand: its groups, the options of each, and the settings class of each option."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import fields, is_dataclass
from functools import cache

from digirl_dist import settings as schema
from digirl_dist.settings import Settings
from digirl_dist.settings.algorithms import algorithm_settings
from digirl_dist.settings.keys import types_of
from digirl_dist.settings.plugins import ALGORITHM, KINDS, settings_classes

_TRAINERS: dict[str, type] = {
    "inprocess": schema.InProcessSettings,
    "torchrun": schema.TorchrunSettings,
}
_ENGINES: dict[str, type] = {
    "openai": schema.OpenAIEngineSettings,
    "transformers": schema.TransformersEngineSettings,
}


@cache
def options_of_groups() -> dict[str, dict[str, type]]:
    """Returns what each option group chooses from, with the settings class of each option."""
    found = {kind.name: settings_classes(kind) for kind in KINDS if kind is not ALGORITHM}
    return {**found, "engine": _ENGINES, "trainer": _TRAINERS}


@cache
def free_keys() -> tuple[str, ...]:
    """Returns the keys whose values are mappings without a schema."""
    classes = [(group, kind) for group, options in options_of_groups().items() for kind in options.values()]
    classes += [("algorithm", schema.AlgorithmSettingsBase), ("judge", schema.JudgeSettings)]
    mappings = [f"{group}.{one.name}" for group, kind in classes for one in fields(kind) if "dict" in str(one.type)]
    return tuple(dict.fromkeys(mappings))


def classes_at(path: Sequence[str]) -> list[type]:
    """Returns the settings classes that may stand at a place of the configuration, such as ``limits``, or none."""
    level: list[type] = [Settings]
    for place, step in enumerate(path):
        if place == 0 and step in (groups := options_of_groups()):
            level = list(groups[step].values())
        elif place == 0 and step == "algorithm":
            level = [algorithm_settings()]
        else:
            found = [types_of(kind).get(step) for kind in level]
            level = [kind for kind in found if isinstance(kind, type) and is_dataclass(kind)]
    return level


def all_keys(*path: str) -> Iterator[tuple[str, ...]]:
    """Yields all keys of the configuration below a place of it, as paths."""
    for kind in classes_at(path):
        for name, value in types_of(kind).items():
            yield (*path, name)
            if is_dataclass(value) or (not path and name in (*options_of_groups(), "algorithm")):
                yield from all_keys(*path, name)


def group_of(class_name: str) -> str | None:
    """Returns the group that has an option with this settings class."""
    named = {kind.__name__: group for group, options in options_of_groups().items() for kind in options.values()}
    return named.get(class_name)


def fields_of(class_name: str) -> list[str]:
    """Returns the keys of a settings class."""
    known = getattr(schema, class_name, None)
    return [each.name for each in fields(known)] if known is not None else []
