"""Reads YAML in bounded time and memory: a few aliases can stand for more values than any machine holds."""

from __future__ import annotations

from itertools import chain
from pathlib import Path
from typing import Any

import yaml

from digirl_dist.errors import SettingsError
from digirl_dist.settings import regular_file

_MOST_VALUES = 10_000
_MOST_CHARACTERS = 1 << 20
_DEEPEST = 100
_LONGEST = 1 << 22
_LOADER: Any = getattr(yaml, "CSafeLoader", yaml.SafeLoader)
"""libyaml's, which every wheel of PyYAML has: PyYAML's own takes half a second for two thousand brackets."""


_MERGE = "tag:yaml.org,2002:merge"


class _TextKeys(_LOADER):  # type: ignore[misc]
    """Takes ``on: true`` for what it looks like: to YAML 1.1 the key is a truth value.

    Raises ValueError for a key that a mapping has twice, of which PyYAML drops the first.
    """

    def get_single_node(self) -> yaml.Node | None:
        node: yaml.Node | None = super().get_single_node()
        _refuse_repeated_keys(node)
        return node

    def construct_mapping(self, node: Any, deep: bool = False) -> dict[Any, Any]:
        for key, _ in node.value:
            if key.tag == "tag:yaml.org,2002:bool":
                key.tag = "tag:yaml.org,2002:str"
        mapping: dict[Any, Any] = super().construct_mapping(node, deep)
        return mapping


def _refuse_repeated_keys(root: yaml.Node | None) -> None:
    """Looks at every mapping as it is written: what ``<<`` merges into one may be given again."""
    seen, left = set[int](), [root]
    while left:
        node = left.pop()
        if not isinstance(node, yaml.CollectionNode) or id(node) in seen:
            continue
        seen.add(id(node))
        if isinstance(node, yaml.SequenceNode):
            left += node.value
            continue
        lines: dict[tuple[str, str], int] = {}
        for key, value in node.value:
            left.append(value)
            if not isinstance(key, yaml.ScalarNode) or key.tag == _MERGE:
                continue
            name, line = (key.tag, key.value), key.start_mark.line + 1
            if name in lines:
                raise ValueError(f"{key.value[:200]!r} is given twice, in lines {lines[name]} and {line}: keep one")
            lines[name] = line


def load_yaml(text: str, name: str) -> Any:
    """Returns the content of ``text``. Raises SettingsError saying ``name`` for what is no YAML or too much of it."""
    refuse_excess(text, name)
    try:
        return yaml.load(text, Loader=_TextKeys)
    except Exception as error:  # PyYAML's constructors raise nearly anything, for a date of a 13th month say
        said = " ".join(str(error).replace('"<unicode string>", ', "").split())
        raise SettingsError(f"{name} is not valid: {said[:500]}") from error


def read_yaml(path: Path, name: str = "", named: bool = False) -> Any:
    """Returns the content of a file, which a person ``named`` or which lies in a folder (see ``regular_file``).

    Raises SettingsError, which calls it ``name``, for one that cannot be read.
    """
    try:
        text = regular_file.content(path, _LONGEST, named).decode()
    except (OSError, ValueError) as error:
        raise SettingsError(f"{name or path} cannot be read: {regular_file.defect(error)}") from error
    return load_yaml(text, name or str(path))


def read_mapping(path: Path) -> dict[str, Any]:
    """Returns the mapping in a file; an empty one where there is no such file, or something else in it."""
    try:
        content = read_yaml(path)
    except SettingsError:
        return {}
    return content if isinstance(content, dict) else {}


def refuse_excess(text: str, name: str) -> None:
    """Raises SettingsError if ``text`` nests deeper than 100 levels, where libyaml would overflow its stack, or its
    aliases stand for more than 10,000 values or a million characters. What is no YAML is left to its reader.
    """
    unfolding, too_deep = _Unfolding(), SettingsError(f"{name} nests deeper than {_DEEPEST} levels")
    try:
        for event in yaml.parse(text, Loader=_LOADER):
            unfolding.add(event)
            if unfolding.depth > _DEEPEST:
                raise too_deep
            if unfolding.values > _MOST_VALUES or unfolding.characters > _MOST_CHARACTERS:
                raise SettingsError(
                    f"the aliases in {name} unfold to more than {_MOST_VALUES} values; write out what is meant"
                )
    except yaml.YAMLError as error:
        if "nesting depth" in str(error):  # PyYAML 6.0.4 and later look a thousand brackets ahead, and refuse more
            raise too_deep from None


def refuse_excess_in_files(folder: Path) -> None:
    """Does so for the YAML files of ``folder`` and of its groups; one that cannot be read is left to its reader."""
    for path in chain(folder.glob("*.yaml"), folder.glob("*/*.yaml")):
        try:
            text = regular_file.content(path, named=True).decode()
        except (OSError, ValueError):
            continue
        refuse_excess(text, str(path))


class _Unfolding:
    """Adds up what the aliases of a text stand for: ``values`` and ``characters``, infinite for one inside of itself.

    Takes the events of a parser in place of nodes, so that nothing is built and nothing recurses.
    """

    def __init__(self) -> None:
        self.values = self.characters = 0.0
        self._known: dict[str, tuple[float, float]] = {}
        self._open: list[tuple[str | None, float, float]] = []
        """Of each collection that is open: its anchor, and the sums before it."""
        self._told = 0.0, 0.0
        """Values and characters so far, aliases written out."""

    @property
    def depth(self) -> int:
        return len(self._open)

    def add(self, event: yaml.Event) -> None:
        match event:
            case yaml.AliasEvent():
                values, characters = self._known.get(event.anchor or "", (0.0, 0.0))  # one unknown is the reader's
                self._tell(values, characters)
                self.values += values
                self.characters += characters
            case yaml.ScalarEvent():
                self._tell(1.0, len(event.value))
                self._know(event.anchor, 1.0, len(event.value))
            case yaml.CollectionStartEvent():
                self._open.append((event.anchor, *self._told))
                self._know(event.anchor, float("inf"), 0.0)
                self._tell(1.0, 0)
            case yaml.CollectionEndEvent():
                anchor, values, characters = self._open.pop()
                self._know(anchor, self._told[0] - values, self._told[1] - characters)

    def _tell(self, values: float, characters: float) -> None:
        self._told = self._told[0] + values, self._told[1] + characters

    def _know(self, anchor: str | None, values: float, characters: float) -> None:
        if anchor is not None:
            self._known[anchor] = values, characters
