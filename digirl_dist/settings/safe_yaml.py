"""Reads YAML in bounded time and memory: a few aliases can stand for more values than any machine holds."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import yaml

from digirl_dist.errors import SettingsError

_MOST_VALUES = 10_000
_MOST_CHARACTERS = 1 << 20


def load_yaml(text: str, name: str) -> Any:
    """Returns the content of ``text``. Raises SettingsError saying ``name`` for what is no YAML or unfolds too far."""
    refuse_unfolding(text, name)
    try:
        return yaml.safe_load(text)
    except Exception as error:  # PyYAML's constructors raise nearly anything, for a date of a 13th month say
        raise SettingsError(f"{name} is not valid: {' '.join(str(error).split())[:500]}") from error


def refuse_unfolding(text: str, name: str) -> None:
    """Raises SettingsError if the aliases in ``text`` stand for more than 10,000 values or a million characters."""
    if "*" not in text or "&" not in text:
        return
    try:
        values, characters = _unfolded(yaml.compose(text, Loader=yaml.SafeLoader), {})
    except (yaml.YAMLError, RecursionError) as error:
        raise SettingsError(f"{name} is not valid: {' '.join(str(error).split())[:500]}") from error
    if values > _MOST_VALUES or characters > _MOST_CHARACTERS:
        raise SettingsError(f"the aliases in {name} unfold to more than {_MOST_VALUES} values; write out what is meant")


def refuse_unfolding_files(folder: Path) -> None:
    """Does so for every YAML file below ``folder``; one that cannot be read is left to its reader."""
    for path in folder.rglob("*.yaml"):
        try:
            text = path.read_text(encoding="utf-8")
        except (OSError, ValueError):
            continue
        refuse_unfolding(text, str(path))


def _unfolded(node: Any, known: dict[int, tuple[float, float]]) -> tuple[float, float]:
    """Returns how many values and characters a node stands for, its aliases written out; infinite inside of itself."""
    if node is None:
        return 0, 0
    if id(node) not in known:
        known[id(node)] = float("inf"), 0
        if isinstance(node, yaml.ScalarNode):
            known[id(node)] = 1, len(node.value)
        else:
            pairs = isinstance(node, yaml.MappingNode)
            children = [part for pair in node.value for part in pair] if pairs else node.value
            sizes = [_unfolded(child, known) for child in children]
            known[id(node)] = 1 + sum(values for values, _ in sizes), sum(characters for _, characters in sizes)
    return known[id(node)]
