"""DigiRL's own YAML files, read as they are: in this package's words, for a run or as a new file."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import yaml
from hydra import compose, initialize_config_dir
from hydra.core.global_hydra import GlobalHydra
from hydra.errors import HydraException
from omegaconf import OmegaConf
from omegaconf.errors import OmegaConfBaseException

from digirl_dist.errors import SettingsError
from digirl_dist.plain_text import one_line
from digirl_dist.settings.digirl_keys import KEYS, Became, became
from digirl_dist.settings.keys import written
from digirl_dist.settings.places import own_folder
from digirl_dist.settings.run import Settings
from digirl_dist.settings.safe_yaml import read_yaml, refuse_excess_in_files

BASE = "default"
"""The configuration of this package on which a migrated file stands."""
_GROUPS = ("agent", "emulator")
MARKS = frozenset({"policy_lm", "critic_lm", "agent_name", "gemini_key", "lm_lr", "grad_accum_steps", "assets_path"})
"""Keys that tell DigiRL's files from others."""
_THEIR_WORDS = {"offline_to_online": "off2on", "filtered_bc": "filteredbc"}
"""DigiRL's words where an override has this package's."""


@dataclass(frozen=True)
class Migrated:
    """A file of DigiRL's in this package's words, by DigiRL's key."""

    became: Mapping[str, Became]

    @property
    def settings(self) -> dict[str, Any]:
        """Returns the settings by dotted key; ``agent`` and ``emulator`` choose from their groups."""
        return {key: value for each in self.became.values() for key, value in each.settings.items()}

    def refuse(self) -> None:
        """Raises SettingsError naming every key that cannot be used."""
        refused = [f"{key}: {each.note}" for key, each in self.became.items() if each.refused]
        if refused:
            raise SettingsError(f"DigiRL's file cannot be used as it is: {'; '.join(refused)}")

    def overrides(self, chosen: Sequence[str]) -> list[str]:
        """Returns the settings as overrides of ``BASE``, less the groups that the user's overrides choose anew."""
        anew = {override.split("=", 1)[0] for override in chosen} & set(_GROUPS)
        left = {key: value for key, value in self.settings.items() if key.split(".")[0] not in anew}
        return [f"{key}={written(value)}" for key, value in left.items()]

    def to_yaml(self) -> str:
        """Returns the new file; comments tell what each key became."""
        groups = {name: self.settings[name] for name in _GROUPS if name in self.settings}
        tree: dict[str, Any] = {}
        for key, value in self.settings.items():
            *path, last = key.split(".")
            place = tree
            for name in path:
                place = place.setdefault(name, {})
            if key not in groups:
                place[last] = value
        defaults = [BASE, *({f"override {name}": chosen} for name, chosen in groups.items()), "_self_"]
        told = "".join(f"# {one_line(f'{key}: {each}')}\n" for key, each in self.became.items())
        body = yaml.safe_dump({"defaults": defaults, **tree}, sort_keys=False, allow_unicode=True)
        return f"# What each key of DigiRL's file became:\n{told}{body}"


def is_digirl(folder: Path, name: str) -> bool:
    """Returns whether a configuration is one of DigiRL's: it has keys of theirs, and none of our schemas below it."""
    found, bases = _keys_and_bases(folder, name.removesuffix(".yaml"), set())
    return bool(found & MARKS) and "settings" not in bases


def migrate(folder: Path, name: str, overrides: Sequence[str] = ()) -> Migrated:
    """Reads a configuration of DigiRL's. Raises SettingsError for one that cannot be read."""
    refuse_excess_in_files(folder)
    GlobalHydra.instance().clear()
    try:
        with initialize_config_dir(str(folder), version_base="1.3"):
            composed = compose(name.removesuffix(".yaml"), overrides=list(overrides))
        values = OmegaConf.to_container(composed, resolve=True)
    except (HydraException, OmegaConfBaseException, yaml.YAMLError, RecursionError, ValueError, OverflowError) as error:
        raise SettingsError(f"{folder / name} cannot be read: {' '.join(str(error).split())}") from error
    assert isinstance(values, dict)
    found = {str(key): _THEIR_WORDS.get(str(value), value) for key, value in values.items()}
    return Migrated({key: became(key, found) for key in found})


def translated(folder: Path, name: str, overrides: Sequence[str]) -> tuple[Path, str, list[str]]:
    """Returns folder, name and overrides of the configuration to compose: those given, unless they are DigiRL's.

    Overrides of keys that DigiRL has count in its file, and those of keys of this package, in its words, in the
    result. Raises SettingsError naming every key that cannot be used.
    """
    if not is_digirl(folder, name):
        return folder, name, list(overrides)
    theirs = [f"++{each}" for each in overrides if each.split("=", 1)[0] in KEYS]
    migrated = migrate(folder, name, theirs)
    migrated.refuse()
    ours = Settings.__dataclass_fields__
    rest = [each for each in overrides if each.split("=", 1)[0] in ours or each.split("=", 1)[0] not in KEYS]
    return own_folder(), BASE, [*migrated.overrides(rest), *rest]


def _keys_and_bases(folder: Path, name: str, seen: set[str]) -> tuple[set[str], set[str]]:
    """Returns the top-level keys of a file and of those that it includes, and the names of these."""
    try:
        content = read_yaml(folder / f"{name}.yaml", named=True)
    except SettingsError:  # whoever composes it says so
        return set(), set()
    keys: set[str] = set(content) if isinstance(content, dict) else set()
    bases: set[str] = set()
    included = content.get("defaults") if isinstance(content, dict) else None
    for base in included if isinstance(included, list) else []:
        if isinstance(base, str) and base not in seen:
            below, further = _keys_and_bases(folder, base, seen | {base})
            keys, bases = keys | below, bases | further | {base}
    return keys, bases
