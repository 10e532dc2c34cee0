"""The configuration that a run folder holds: a stranger's, perhaps, or of a version with other keys."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, fields, is_dataclass
from enum import Enum
from pathlib import Path, PurePath
from typing import Any

from hydra.core.config_store import ConfigStore
from omegaconf import OmegaConf

from digirl_dist.errors import SettingsError, UntrustedError
from digirl_dist.plain_text import nearest
from digirl_dist.settings import Settings
from digirl_dist.settings.configuration import Source, composed_by_hydra, register_schemas, typed
from digirl_dist.settings.key_places import Place, options_of_groups, unknown_keys
from digirl_dist.settings.keys import is_below, key_of
from digirl_dist.settings.places import own_folder
from digirl_dist.settings.safe_yaml import read_mapping
from digirl_dist.types import Json

_IN_MEMORY = "config_of_a_run"
_OF_HYDRA = ("defaults", "hydra")


@dataclass(frozen=True)
class RunSource(Source):
    """The ``config.yaml`` of a run folder; nothing else there is read.

    A key that it lacks has its default, and one that no settings have is left out.
    """

    config_name: str = "config"
    trust: bool = False
    uses: tuple[str, ...] = ()
    """The keys that are used, with all below them; empty: all."""

    def load(self) -> Settings:
        """Raises SettingsError naming what is wrong, UntrustedError for what the folder names (see ``trust``)."""
        path, content = self.folder / "config.yaml", self._content()
        refuse_references(content, path)
        for unknown in list(unknown_keys(Settings, content)):
            _remove(content, unknown)
        groups = [{group: f"{self._name_in(content, group)}_schema"} for group in options_of_groups()]
        register_schemas()
        composed = OmegaConf.create({"defaults": ["settings", *groups, "_self_"], **content})
        ConfigStore.instance().store(_IN_MEMORY, composed)
        settings = typed(composed_by_hydra(own_folder(), _IN_MEMORY, self.overrides), self.config_name, self.overrides)
        given = [key_of(each) for each in self.overrides]
        refuse_untrusted(settings, path, self.trust, given=given, uses=self.uses)
        return settings

    @property
    def notice(self) -> str:
        """Returns a line for the user about keys that this version does not have; empty if there are none."""
        unknown = [".".join(map(str, path)) for path in unknown_keys(Settings, self._content())]
        if not unknown:
            return ""
        return f"{self.folder / 'config.yaml'} has keys that this version does not have, left out: {', '.join(unknown)}"

    def _content(self) -> dict[str, Any]:
        found = read_mapping(self.folder / "config.yaml")
        return {key: value for key, value in found.items() if key not in _OF_HYDRA}

    def _name_in(self, content: Mapping[str, Any], group: str) -> str:
        block = content.get(group)
        name = block.get("name") if isinstance(block, dict) else None
        known = options_of_groups()[group]
        if not isinstance(name, str) or name not in known:
            near = nearest(str(name), sorted(known))
            raise SettingsError(f"{self.folder / 'config.yaml'}: there is no {group} {name!r:.80}; {near}")
        return name


def _remove(content: dict[str, Json], path: Place) -> None:
    for step in path[:-1]:
        content = content[step]
    del content[path[-1]]


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


def refuse_untrusted(
    settings: Any, where: Path, trust: bool, prefix: str = "", given: Sequence[str] = (), uses: Sequence[str] = ()
) -> None:
    """Decides about ``settings``, a dataclass that was read from the file ``where``; ``given`` are keys that the person
    gave, and ``uses`` those that are used (empty: all).

    Raises UntrustedError, with what would be called, for values that a person has to answer for.
    """
    if trust:
        return
    own = [key for key in given if key not in options_of_groups()]
    named = [(key, value) for key, value in _named(settings, prefix) if not any(is_below(key, one) for one in own)]
    named = [(key, value) for key, value in named if not uses or any(is_below(key, one) for one in uses)]
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


def _named(settings: Any, prefix: str) -> Iterator[tuple[str, Any]]:
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
    if not value or isinstance(value, int | float) or any(is_below(key, one) for one in _HARMLESS):
        return False
    if key == "task_set":
        return PurePath(value).suffix in _LISTS_OF_TASKS
    return ":" in value or key not in (
        "emulator.id",
        "algorithm.digirl.advantage",
    )  # `module:Env-v0` imports the module
