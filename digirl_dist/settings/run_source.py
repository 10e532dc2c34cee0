"""The configuration that a run folder holds, also one of a version with other keys: what no key has is left out."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory

import yaml

from digirl_dist.settings import Settings
from digirl_dist.settings.configuration import Source, load
from digirl_dist.settings.key_places import classes_at, free_keys, options_of_groups
from digirl_dist.settings.keys import types_of
from digirl_dist.settings.safe_yaml import read_mapping
from digirl_dist.types import Json


@dataclass(frozen=True)
class RunSource(Source):
    """The ``config.yaml`` of a run folder. A key that it lacks has its default."""

    config_name: str = "config"

    def load(self) -> Settings:
        """Raises SettingsError naming what is wrong."""
        content = self._content()
        unknown = list(_unknown(content))
        if not unknown:
            return super().load()
        for path in unknown:
            _remove(content, path)
        with TemporaryDirectory(prefix="digirl-dist-") as place:
            (Path(place) / "config.yaml").write_text(yaml.safe_dump(content, sort_keys=False))
            return load(place, self.config_name, self.overrides)

    @property
    def notice(self) -> str:
        """Returns a line for the user about keys that this version does not have; empty if there are none."""
        unknown = [".".join(path) for path in _unknown(self._content())]
        if not unknown:
            return ""
        return f"{self.folder / 'config.yaml'} has keys that this version does not have, left out: {', '.join(unknown)}"

    def _content(self) -> dict[str, Json]:
        return dict(read_mapping(self.folder / "config.yaml"))


def _unknown(content: Mapping[str, Json], path: tuple[str, ...] = ()) -> Iterator[tuple[str, ...]]:
    """Yields the paths of keys that no settings class has."""
    kinds = classes_at(path)
    if len(path) == 1 and path[0] in (groups := options_of_groups()):
        kinds = [kind for name, kind in groups[path[0]].items() if name == content.get("name")] or kinds
    names = {name for kind in kinds for name in types_of(kind)}
    for key, value in content.items():
        below = (*path, key)
        if key not in names and below != ("defaults",):
            yield below
        elif isinstance(value, Mapping) and ".".join(map(str, below)) not in free_keys():
            yield from _unknown(value, below) if classes_at(below) else ()


def _remove(content: dict[str, Json], path: tuple[str, ...]) -> None:
    for step in path[:-1]:
        content = content[step]
    del content[path[-1]]
