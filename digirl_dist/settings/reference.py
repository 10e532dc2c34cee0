"""Every key of the configuration in words, for the reference page and ``digirl-dist settings``."""

from __future__ import annotations

import ast
import inspect
from collections.abc import Collection, Iterator, Mapping
from dataclasses import MISSING as NO_DEFAULT
from dataclasses import Field, dataclass, fields, is_dataclass
from enum import Enum
from typing import Any, get_args

from digirl_dist.settings import Settings
from digirl_dist.settings.algorithms import algorithm_settings
from digirl_dist.settings.expert import MISSING, is_expert
from digirl_dist.settings.key_places import options_of_groups
from digirl_dist.settings.keys import types_of, written
from digirl_dist.settings.ranges import in_words

_UNITS = {
    "_s": "seconds",
    "_h": "hours",
    "_ms": "milliseconds",
    "_mb": "MiB",
    "_gb": "GiB",
    "_kb_s": "KiB/s",
    "_bytes": "bytes",
    "_px": "pixels",
}


@dataclass(frozen=True)
class Row:
    """One key."""

    key: str
    anchor: str
    """Its name on the page: with the option that has it, as ``emulator.android.avd``."""
    kind: str
    """Type, range and unit."""
    default: str
    meaning: str
    expert: bool


@dataclass(frozen=True)
class Section:
    """Keys that stand together."""

    title: str
    about: str
    rows: list[Row]


def sections() -> Iterator[Section]:
    """Yields all keys. What several options have stands once: with their group, or with the first that has it."""
    groups, algorithms = options_of_groups(), algorithm_settings()
    yield Section("Top level", _about(Settings), _rows(Settings, without=groups, nested=False))
    yield from _blocks(Settings, "", (*groups, "algorithm"))
    for group, options in groups.items():
        base = types_of(Settings)[group]
        yield Section(group, _about(base), _rows(base, f"{group}.", without=("name",)))
        for name, kind in options.items():
            yield _option(group, name, kind, base, {other: one for one, other in options.items()})
    yield Section("algorithm", _about(algorithms), _rows(algorithms, "algorithm.", nested=False))
    yield from _blocks(algorithms, "algorithm.", ())


def _option(group: str, name: str, kind: type, base: type, options: Mapping[type, str]) -> Section:
    parent = next((each for each in kind.__mro__[1:] if each in options), base)
    more = f" It also has the keys of {group}={options[parent]}." if parent in options else ""
    rows = _rows(kind, f"{group}.", f"{group}.{name}.", without=(*types_of(parent), "name"))
    return Section(f"{group}={name}", _about(kind) + more, rows)


def _blocks(kind: type, prefix: str, without: Collection[str]) -> Iterator[Section]:
    for name, block in types_of(kind).items():
        if is_dataclass(block) and name not in without:
            yield Section(f"{prefix}{name}", _about(block), _rows(block, f"{prefix}{name}."))


def _rows(
    kind: Any,
    prefix: str = "",
    anchor: str | None = None,
    without: Collection[str] = (),
    nested: bool = True,
    within: Any = None,
) -> list[Row]:
    """``within`` is the value that a block has by default, whose values are then not those of its class."""
    anchor = prefix if anchor is None else anchor
    hints, said, found = types_of(kind, include_extras=True), _descriptions(kind), list[Row]()
    for each in fields(kind):
        key, hint = f"{prefix}{each.name}", hints[each.name]
        if each.name in without:
            continue
        value = _default(each) if within is None else getattr(within, each.name)
        if not is_dataclass(hint):
            meaning = said.get(each.name) or _about_choices(hint)
            told = _kind(each.name, hint), _in_words(value), meaning, is_expert(each)
            found.append(Row(key, f"{anchor}{each.name}", *told))
        elif nested:
            found += _rows(hint, f"{key}.", f"{anchor}{each.name}.", within=value)
    return found


def _about(kind: Any) -> str:
    return inspect.getdoc(kind) or ""


def _descriptions(kind: type) -> dict[str, str]:
    """Returns the texts below the fields of a dataclass and of those that it derives from."""
    found = {}
    for base in reversed(kind.__mro__):
        if not is_dataclass(base) or base.__module__ == "types" or base.__qualname__ == "AlgorithmSettings":
            continue
        parsed: Any = ast.parse(inspect.cleandoc("\n" + inspect.getsource(base)))
        defined = parsed.body[0].body
        for one, following in zip(defined, [*defined[1:], None], strict=True):
            if isinstance(one, ast.AnnAssign) and isinstance(following, ast.Expr):
                name, text = one.target, following.value
                assert isinstance(name, ast.Name) and isinstance(text, ast.Constant)
                found[name.id] = inspect.cleandoc(str(text.value))
    return found


def _about_choices(hint: Any) -> str:
    kinds = [each for each in (hint, *get_args(hint)) if isinstance(each, type) and issubclass(each, Enum)]
    return _about(kinds[0]) if kinds else ""


def _kind(name: str, hint: Any) -> str:
    unit = next((f", in {unit}" for end, unit in reversed(_UNITS.items()) if name.endswith(end)), "")
    return in_words(hint) + unit


def _default(one: Field[Any]) -> Any:
    made: Any = one.default_factory
    return made() if one.default is NO_DEFAULT else one.default


def _in_words(default: Any) -> str:
    if default == MISSING:
        return "*must be given*"
    return f"`{default if isinstance(default, str) and default else written(default)}`"
