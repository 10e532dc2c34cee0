"""The reference pages of the site, generated from the package: settings, commands, the Python interface, extras."""

import ast
import inspect
import re
from dataclasses import MISSING as NO_DEFAULT
from dataclasses import fields, is_dataclass
from enum import Enum
from importlib import metadata
from pathlib import Path
from types import NoneType
from typing import Annotated, Any, Union, get_args, get_origin

import griffe

import digirl_dist
from digirl_dist.cli.command import command, names
from digirl_dist.settings import Settings
from digirl_dist.settings.algorithms import algorithm_settings
from digirl_dist.settings.key_places import options_of_groups
from digirl_dist.settings.keys import types_of
from digirl_dist.settings.missing import MISSING
from digirl_dist.settings.ranges import bounds_of, described

UNITS = {
    "_s": "seconds",
    "_h": "hours",
    "_ms": "milliseconds",
    "_mb": "MiB",
    "_gb": "GiB",
    "_kb_s": "KiB/s",
    "_bytes": "bytes",
    "_px": "pixels",
}
RANGE = re.compile(r"^a (whole )?number ")
CHOSEN_BY = ("emulator", "agent", "collector", "engine", "trainer")
"""Keys whose content depends on the option in use."""
PURPOSES = {
    "android": "`emulator=android`",
    "atari": "Atari games by `emulator=gymnasium`",
    "autoui": "`agent=autoui`",
    "bridges": "runners of other libraries",
    "data": "tables from Python",
    "dev": "working on the package: tests, lint, types, this site",
    "docs": "this site",
    "endpoint": "`agent=endpoint`, `engine=openai`",
    "hub": "`digirl-dist export --push`",
    "jax": "skrl's agents of JAX (`examples/skrl_ppo.py`)",
    "judge": "`success=judge`",
    "miniwob": "`emulator=miniwob`",
    "peers": "comparisons by `script/bench ray`",
    "ray": "`collector=ray`",
    "release": "`script/release`",
    "view": "`digirl-dist view`",
    "vlm": "`agent=vlm`",
    "wandb": "`wandb_project`",
}


def pages():
    """Returns the text of each page by its file name."""
    return {"settings.md": settings(), "commands.md": commands(), "api.md": api(), "extras.md": extras()}


def settings():
    """Every key of the configuration, with its type, unit, default and range."""
    parts = [
        "# Settings\n",
        "Every key of the configuration, as `key=value` on the command line or in a YAML file below `config/`. A value "
        "that is out of its range, or of another type, is refused in one line before anything starts. So is a key on "
        "the command line that nothing reads with the other settings, such as `evaluation.episodes=8` without "
        "`evaluation.every`; a file may hold most of these for the commands that read them.\n",
        *section("Top level", "", Settings),
        *(part for name, kind in groups(Settings) for part in section(name, f"{name}.", kind)),
    ]
    for group, options in options_of_groups().items():
        for name, kind in options.items():
            parts += section(f"{group}={name}", f"{group}.", kind, anchor=f"{group}.{name}.")
    parts += section("algorithm", "algorithm.", algorithm_settings())
    for name, kind in groups(algorithm_settings()):
        parts += section(f"algorithm.{name}", f"algorithm.{name}.", kind)
    return "\n".join(parts)


def groups(kind):
    """The keys of a settings class that hold further keys, except those that an option fills."""
    for name, hint in types_of(kind).items():
        if is_dataclass(hint) and name not in CHOSEN_BY and name != "algorithm":
            yield name, hint


def section(title, prefix, kind, anchor=None):
    """One table of keys; those of dataclasses inside have their own prefix."""
    yield f"## {title}\n"
    yield f"{prose(inspect.getdoc(kind))}\n"
    rows = list(rows_of(kind, prefix, anchor or prefix, skip=kind is Settings or kind is algorithm_settings()))
    if rows:
        yield "| key | type, range, unit | default | meaning |\n| --- | --- | --- | --- |"
        yield from rows
    yield ""


def rows_of(kind, prefix, anchor, skip=False):
    hints, said = types_of(kind, include_extras=True), descriptions(kind)
    for each in fields(kind):
        if each.name == "name" and prefix != "" and prefix.split(".")[0] in CHOSEN_BY:
            continue
        hint = hints[each.name]
        if is_dataclass(hint):
            if not skip:
                yield from rows_of(hint, f"{prefix}{each.name}.", f"{anchor}{each.name}.")
            continue
        if skip and each.name in CHOSEN_BY:
            continue
        ranges = (RANGE.sub("", described(bounds)) for bounds in bounds_of(hint))
        unit = next((unit for end, unit in reversed(UNITS.items()) if each.name.endswith(end)), "")
        cells = [
            f'<a id="{anchor}{each.name}"></a>`{prefix}{each.name}`',
            ", ".join(filter(None, [type_in_words(hint), *ranges, unit])),
            default_of(each),
            said.get(each.name) or enum_description(hint) or undescribed(f"{prefix}{each.name}"),
        ]
        yield f"| {' | '.join(prose(cell).replace('|', '&#124;') for cell in cells)} |"


def undescribed(key):
    raise SystemExit(f"the setting {key} has no description: write one below it in its settings class")


def descriptions(kind):
    """The texts below the fields of a dataclass and of those that it derives from."""
    found = {}
    for base in reversed(kind.__mro__):
        if not is_dataclass(base) or base.__module__ == "types" or base.__qualname__ == "AlgorithmSettings":
            continue
        body = ast.parse(inspect.cleandoc("\n" + inspect.getsource(base))).body[0].body
        for one, following in zip(body, [*body[1:], None], strict=True):
            if isinstance(one, ast.AnnAssign) and isinstance(following, ast.Expr):
                found[one.target.id] = inspect.cleandoc(following.value.value)
    return found


def enum_description(hint):
    kinds = [each for each in (hint, *get_args(hint)) if isinstance(each, type) and issubclass(each, Enum)]
    return inspect.getdoc(kinds[0]) if kinds else ""


def type_in_words(hint):
    """A type for people: ``whole number or null``, ``true or false``, names of choices."""
    if get_origin(hint) in (Union, type(int | str)):
        return " or ".join(type_in_words(each) for each in get_args(hint))
    if bounds_of(hint) and get_origin(hint) is Annotated and get_args(hint)[0] in (int, float):
        return "whole number" if get_args(hint)[0] is int else "number"
    if get_origin(hint) is Annotated:
        return "path" if get_args(hint)[0] is str else type_in_words(get_args(hint)[0])
    if isinstance(hint, type) and issubclass(hint, Enum):
        return ", ".join(f"`{name}`" for name in hint.__members__)
    if get_origin(hint) is list:
        return f"list: {type_in_words(get_args(hint)[0])}"
    if get_origin(hint) is dict:
        return "mapping"
    words = {bool: "true or false", int: "whole number", float: "number", str: "text", NoneType: "null", Any: "any"}
    return words[hint]


def default_of(each):
    value = each.default if each.default is not NO_DEFAULT else each.default_factory()
    if value == MISSING:
        return "*must be given*"
    value = value.name if isinstance(value, Enum) else value
    shown = {None: "null", True: "true", False: "false"}.get(value) if isinstance(value, bool | None) else None
    return f"`{shown or (value if value != '' else repr(value))}`"


def prose(text):
    """A docstring on one line; what looks like HTML in it stays text."""
    line = " ".join((text or "").split())
    return re.sub(r"<(?!/?a\b)", "&lt;", line) if "`" not in line else line


def commands():
    """The help of every command."""
    parts = ["# Commands\n", "`digirl-dist` alone shows what there is; each command explains itself with `--help`.\n"]
    for name in names():
        shown = command(name).parser().format_help()
        parts.append(f"## {name}\n\n```text\n{shown.rstrip()}\n```\n")
    return "\n".join(parts)


def api():
    """The public names, with signatures and docstrings as they are in the source."""
    package = griffe.load("digirl_dist", search_paths=[str(Path(digirl_dist.__file__).parent.parent)])
    parts = ["# Python\n", "What `digirl_dist` exports. [The Python interface](../python.md) shows it at work.\n"]
    for name in digirl_dist.__all__:
        found = package[f"{digirl_dist._HOMES[name]}.{name}"]
        parts += [f"## {name}\n", *described_object(found, f"digirl_dist.{name}")]
        if found.is_class:
            for member in found.members.values():
                if not member.name.startswith("_") and not member.is_alias and member.docstring:
                    parts += [f"### {name}.{member.name}\n", *described_object(member, member.name)]
    return "\n".join(parts)


def described_object(found, shown):
    if found.is_function or found.is_class:
        given = [each for each in found.parameters if each.name not in ("self", "cls")]
        returns = f" -> {found.returns}" if found.is_function and found.returns else ""
        parameters = ", ".join(signature_part(each) for each in given)
        yield f"```python\n{shown}({parameters}){returns}\n```\n"
    elif found.annotation:
        yield f"```python\n{shown}: {found.annotation}\n```\n"
    if found.docstring:
        yield f"{found.docstring.value}\n"
    if found.is_class and "__init__" in found.members and found["__init__"].docstring:
        yield f"{found['__init__'].docstring.value}\n"


def signature_part(each):
    star = {"variadic positional": "*", "variadic keyword": "**"}.get(each.kind.value, "")
    hint = f": {each.annotation}" if each.annotation else ""
    return f"{star}{each.name}{hint}" + (f" = {each.default}" if each.default is not None and not star else "")


def extras():
    """The extras of the package, and what each installs."""
    rows = {}
    for requirement in metadata.requires("digirl_dist") or []:
        needed, _, marker = requirement.partition(";")
        if extra := re.search(r"extra == ['\"]([\w-]+)", marker):
            rows.setdefault(extra[1], []).append(f"`{needed.strip()}`")
    listed = [
        f'| <a id="{name}"></a>`{name}` | {PURPOSES.get(name, "")} | {", ".join(rows[name])} |' for name in sorted(rows)
    ]
    head = "# Extras\n\n`pip install 'digirl_dist[NAME,NAME]'`. Workers get theirs by themselves.\n"
    return "\n".join([head, "| extra | for | installs |\n| --- | --- | --- |", *listed, ""])
