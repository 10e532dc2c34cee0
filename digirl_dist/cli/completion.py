"""What a shell may complete: commands, options, keys of the configuration, and names to choose from."""

from __future__ import annotations

import argparse
import os
from collections.abc import Iterator
from dataclasses import is_dataclass
from enum import Enum
from typing import Any


def is_asked_by_a_shell() -> bool:
    return "_ARGCOMPLETE" in os.environ


def answer_the_shell(parser: argparse.ArgumentParser) -> None:
    """Writes the completions of the shell's line and ends the process."""
    import argcomplete

    argcomplete.autocomplete(parser)


def print_completion(options: argparse.Namespace) -> int:
    """Prints shell completion of commands and keys: eval "$(digirl-dist completion bash)", or zsh, fish."""
    from argcomplete.shell_integration import shellcode

    print(shellcode(["digirl-dist"], shell=options.shell))
    return 0


def complete_override(prefix: str, **_: Any) -> list[str]:
    """Returns the keys, and for some keys the values, that ``prefix`` may become."""
    key, sign, _value = prefix.partition("=")
    if sign:
        return [f"{key}={value}" for value in _values(key)]
    return [each for each in _keys(prefix) if each.startswith(prefix)]


def _values(key: str) -> list[str]:
    from digirl_dist.settings.key_places import options_of_groups
    from digirl_dist.settings.keys import types_of
    from digirl_dist.settings.plugins import ALGORITHM
    from digirl_dist.settings.run import Settings

    if key == "train_algorithm":
        return list(ALGORITHM.names())
    if key in (groups := options_of_groups()):
        return list(groups[key])
    kind: Any = types_of(Settings).get(key)
    if isinstance(kind, type) and issubclass(kind, Enum):
        return [each.name for each in kind]
    return ["true", "false"] if kind is bool else []


def _keys(prefix: str) -> Iterator[str]:
    """Yields the keys at the place to which ``prefix`` leads."""
    from digirl_dist.settings.key_places import classes_at, options_of_groups
    from digirl_dist.settings.keys import types_of

    path = prefix.split(".")[:-1]
    start = "".join(f"{step}." for step in path)
    for kind in classes_at(path):
        for name, value in types_of(kind).items():
            group = start == "" and name in options_of_groups()
            yield f"{start}{name}." if is_dataclass(value) and not group else f"{start}{name}="
            if group:
                yield f"{name}."
