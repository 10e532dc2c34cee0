"""The configuration that a run folder holds: a stranger's, perhaps, or of a version with other keys."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from hydra.core.config_store import ConfigStore
from omegaconf import OmegaConf

from digirl_dist.errors import SettingsError
from digirl_dist.settings import Settings
from digirl_dist.settings.configuration import Source, composed_by_hydra, register_schemas, typed
from digirl_dist.settings.key_places import classes_at, free_keys, options_of_groups
from digirl_dist.settings.keys import key_of, types_of
from digirl_dist.settings.nearest import nearest
from digirl_dist.settings.places import own_folder
from digirl_dist.settings.safe_yaml import read_mapping
from digirl_dist.settings.trust import refuse_references, refuse_untrusted
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

    def load(self) -> Settings:
        """Raises SettingsError naming what is wrong, UntrustedError for what the folder names (see ``trust``)."""
        path, content = self.folder / "config.yaml", self._content()
        refuse_references(content, path)
        for unknown in list(_unknown(content)):
            _remove(content, unknown)
        groups = [{group: f"{self._name_in(content, group)}_schema"} for group in options_of_groups()]
        register_schemas()
        composed = OmegaConf.create({"defaults": ["settings", *groups, "_self_"], **content})
        ConfigStore.instance().store(_IN_MEMORY, composed)
        settings = typed(composed_by_hydra(own_folder(), _IN_MEMORY, self.overrides), self.config_name, self.overrides)
        refuse_untrusted(settings, path, self.trust, given=[key_of(each) for each in self.overrides])
        return settings

    @property
    def notice(self) -> str:
        """Returns a line for the user about keys that this version does not have; empty if there are none."""
        unknown = [".".join(path) for path in _unknown(self._content())]
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


def _unknown(content: Mapping[str, Json], path: tuple[str, ...] = ()) -> Iterator[tuple[str, ...]]:
    """Yields the paths of keys that no settings class has."""
    kinds = classes_at(path)
    if len(path) == 1 and path[0] in (groups := options_of_groups()):
        kinds = [kind for name, kind in groups[path[0]].items() if name == content.get("name")] or kinds
    names = {name for kind in kinds for name in types_of(kind)}
    for key, value in content.items():
        below = (*path, key)
        if key not in names:
            yield below
        elif isinstance(value, Mapping) and ".".join(map(str, below)) not in free_keys():
            yield from _unknown(value, below) if classes_at(below) else ()


def _remove(content: dict[str, Json], path: tuple[str, ...]) -> None:
    for step in path[:-1]:
        content = content[step]
    del content[path[-1]]
