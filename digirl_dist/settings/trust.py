"""Nothing that a run folder names is called, started, opened or reached unless a person said so.

The folder may be a stranger's. A person says so by ``--trust``, by ``trust=True``, or by naming the same key on the
command line.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import fields, is_dataclass
from enum import Enum
from pathlib import Path, PurePath
from typing import Any

from digirl_dist.errors import UntrustedError
from digirl_dist.settings.key_places import options_of_groups
from digirl_dist.settings.keys import is_below

_HARMLESS = (
    *("bsize", "logger_project", "media", "relay", "save_path", "train_algorithm", "judge.prompt"),
    *("trainer.name", "trainer.device", "trainer.shard_blocks", "engine.name", "emulator.name", "agent.name"),
    *("agent.actions", "agent.lora", "agent.system", "emulator.actions", "emulator.family", "emulator.image_size"),
    *("emulator.masked", "emulator.observe", "emulator.task"),
)
"""Keys whose texts are words, and never the name of code, a file, a program, a machine or an address. A new key is not
among them until somebody has looked."""
_LISTS_OF_TASKS = (".yaml", ".yml", ".json", ".txt")
_TOLD = 4

Named = tuple[str, Any]
"""A key and its value."""


def refuse_untrusted(settings: Any, where: Path, trust: bool, prefix: str = "", given: Sequence[str] = ()) -> None:
    """Decides about ``settings``, a dataclass that was read from the file ``where``; ``given`` are keys that the person
    gave. Raises UntrustedError, with what would be called, for values that a person has to answer for.
    """
    if trust:
        return
    own = [key for key in given if key not in options_of_groups()]
    named = [(key, value) for key, value in _named(settings, prefix) if not any(is_below(key, one) for one in own)]
    if named:
        told = ", ".join(f"{key}={value!r:.100}" for key, value in named[:_TOLD])
        more = f" and {len(named) - _TOLD} more" if len(named) > _TOLD else ""
        raise UntrustedError(
            f"{where} names what would be called, opened or reached: {told}{more}; whoever made the folder chose that "
            "-> trust it with --trust (in Python: trust=True) if you made it, or give these keys yourself"
        )


def refuse_references(content: Any, where: Path) -> None:
    """Raises UntrustedError for a text with ``${``: to OmegaConf it is a reference, also to environment variables."""
    if isinstance(content, str) and "${" in content:
        raise UntrustedError(f"{where} has {content!r:.100}, which refers to something else; write out what is meant")
    for part in content.items() if isinstance(content, dict) else [content] if isinstance(content, list) else ():
        for each in part:
            refuse_references(each, where)


def _named(settings: Any, prefix: str) -> Iterator[Named]:
    """Yields what the settings name: every value that can be a name, is not the default, and is not harmless."""
    usual = type(settings)()
    for each in fields(settings):
        key, value = f"{prefix}{each.name}", getattr(settings, each.name)
        if is_dataclass(value):
            yield from _named(value, f"{key}.")
        elif value != getattr(usual, each.name) and _is_a_name(key, value):
            yield key, value


def _is_a_name(key: str, value: Any) -> bool:
    if isinstance(value, Enum):
        return key == "success" and value.name == "judge"  # asks a server, with the person's key
    if value is None or isinstance(value, bool | int | float) or any(is_below(key, one) for one in _HARMLESS):
        return False
    if key == "task_set":
        return PurePath(value).suffix in _LISTS_OF_TASKS
    return not (key == "emulator.id" and ":" not in value)  # `module:Env-v0` imports the module
