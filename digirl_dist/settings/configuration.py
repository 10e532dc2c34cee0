"""From YAML files and overrides to typed settings; refuses what is not valid before anything starts."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass, is_dataclass
from functools import cache
from pathlib import Path
from typing import Any, get_origin

import msgspec
import yaml
from hydra import compose, initialize_config_dir
from hydra.core.config_search_path import ConfigSearchPath
from hydra.core.config_store import ConfigStore
from hydra.core.global_hydra import GlobalHydra
from hydra.core.plugins import Plugins
from hydra.errors import HydraException, MissingConfigException, OverrideParseException
from hydra.plugins.search_path_plugin import SearchPathPlugin
from omegaconf import DictConfig, OmegaConf
from omegaconf.errors import OmegaConfBaseException

from digirl_dist.errors import SettingsError
from digirl_dist.plain_text import HIDDEN, hide, nearest, secrets_of
from digirl_dist.settings import Settings
from digirl_dist.settings.conversion import as_mapping, converted, meant_key
from digirl_dist.settings.digirl_files import is_digirl, translated
from digirl_dist.settings.hints import bare, instead_of, own_class
from digirl_dist.settings.key_places import options_of_groups
from digirl_dist.settings.keys import is_below, key_of, quoted, types_of
from digirl_dist.settings.places import find_folder, own_folder
from digirl_dist.settings.ranges import shown
from digirl_dist.settings.safe_yaml import read_yaml, refuse_excess_in_files
from digirl_dist.settings.unread import refuse_unread_overrides

_SEVERAL = re.compile(r"[^\[{('\",]*,")
"""What Hydra would take for a sweep over several values."""


class _OwnFolder(SearchPathPlugin):  # type: ignore[misc]
    """What the user's folder lacks, the package's own has: one file in it is enough."""

    def manipulate_search_path(self, search_path: ConfigSearchPath) -> None:
        search_path.append("digirl_dist", f"file://{own_folder()}")


@dataclass(frozen=True)
class Source:
    """Where the settings of a run come from, so that they can be read again."""

    config_path: str
    config_name: str
    overrides: tuple[str, ...] = ()

    @property
    def folder(self) -> Path:
        return find_folder(self.config_path)

    @property
    def words(self) -> list[str]:
        """Returns the words of ``digirl-dist run`` that train with them."""
        return ["--config-path", self.config_path, "--config-name", self.config_name, *self.overrides]

    def load(self) -> Settings:
        """Raises SettingsError naming what is wrong."""
        return load(self.config_path, self.config_name, self.overrides)

    @property
    def notice(self) -> str:
        """Returns a line for the user of a file of DigiRL's; empty for others."""
        if not is_digirl(self.folder, self.config_name):
            return ""
        path = self.folder / f"{self.config_name.removesuffix('.yaml')}.yaml"
        return f"{path} is one of DigiRL's; `digirl-dist migrate {path}` prints what each of its keys became"

    def overrides_key(self, key: str) -> bool:
        """Whether the command line decides about ``key``, whatever the files say."""
        return key in map(key_of, self.overrides)


def load(config_path: str, config_name: str, overrides: Sequence[str]) -> Settings:
    """Composes ``config_name`` below ``config_path`` with ``overrides``; it may be a file of DigiRL's.

    Raises SettingsError naming what is wrong.
    """
    return typed(_compose(*translated(find_folder(config_path), config_name, overrides)), config_name, overrides)


def typed(composed: DictConfig, config_name: str, overrides: Sequence[str]) -> Settings:
    try:
        given: Any = OmegaConf.to_container(composed, resolve=True)
    except OmegaConfBaseException as error:
        raise SettingsError(_first_line(error)) from error
    hide(secrets_of(given))
    if cut := _keys_with(given, "\0"):
        raise SettingsError(f"{cut[0]} has a NUL in it, which no command, path or address may have: leave it out")
    if hidden := _keys_with(given, HIDDEN):
        raise SettingsError(
            f"{config_name}.yaml hides the secrets in {', '.join(hidden)}; give them again, as key=value"
        )
    if not options_of_groups().keys() <= given.keys():
        raise SettingsError(f"{config_name}.yaml is no configuration: let it begin with `defaults: [host, _self_]`")
    if missing := sorted(OmegaConf.missing_keys(composed)):
        raise SettingsError(f"{missing[0]} must be given: {missing[0]}=…")
    settings = converted(Settings, given)
    refuse_unread_overrides(settings, overrides)
    return settings


def to_yaml(settings: Settings) -> str:
    """Returns the whole configuration for the run folder, secrets hidden.

    It is itself a configuration: ``--config-path RUN --config-name config`` composes it.
    """
    plain = as_mapping(settings)
    schemas = [{group: f"{plain[group]['name']}_schema"} for group in options_of_groups()]
    return OmegaConf.to_yaml({"defaults": ["settings", *schemas, "_self_"], **plain})


def _compose(folder: Path, name: str, overrides: Sequence[str]) -> DictConfig:
    names = _names(folder)
    if (stem := name.removesuffix(".yaml")) not in names:
        here = Path(f"{stem}.yaml")
        meant = f"add --config-path {here.parent} --config-name {here.stem}" if here.is_file() else nearest(stem, names)
        raise SettingsError(f"there is no {stem}.yaml in {folder}; {meant}")
    refuse_excess_in_files(folder)
    _refuse_shapes(folder / f"{stem}.yaml")
    register_schemas()
    return composed_by_hydra(folder, name, overrides)


def _names(folder: Path) -> list[str]:
    """Returns what may be composed there."""
    return sorted({path.stem for each in (folder, own_folder()) for path in each.glob("*.yaml")})


def _refuse_shapes(file: Path) -> None:
    """Raises SettingsError for what Hydra refuses in words of its own: text that is no YAML, a list or a mapping in
    place of the other."""
    content = read_yaml(file, named=True) if file.exists() else {}
    if not isinstance(content, dict | None):
        raise SettingsError(f"{file} must hold `key: value`, not {shown(content)}")
    for key, value in (content or {}).items():
        if (isinstance(value, dict) and _is_list(key)) or (
            isinstance(value, list) and is_dataclass(types_of(Settings).get(key))
        ):
            raise SettingsError(
                f"{key} in {file} must be "
                + ("given by its keys" if isinstance(value, list) else f"a list, as `{key}: [a, b]`")
            )


def _is_list(key: str) -> bool:
    return key == "worker_ips" or get_origin(types_of(Settings).get(key)) is list


def composed_by_hydra(folder: Path, name: str, overrides: Sequence[str]) -> DictConfig:
    _refuse_odd(overrides)
    GlobalHydra.instance().clear()
    try:
        with initialize_config_dir(str(folder), version_base="1.3"):
            return compose(name.removesuffix(".yaml"), overrides=[_added(_with_homes(each)) for each in overrides])
    except OverrideParseException as error:
        given = str(error.override).removeprefix("++")
        key, _, value = given.partition("=")
        form = '["...", "..."]' if value.startswith("[") else '"..."'
        raise SettingsError(
            f"{shown(given)} cannot be understood; "
            f"a text with blanks, quotes, brackets or commas needs quotes within the shell's: '{key}={form}'"
        ) from error
    except MissingConfigException as error:
        raise SettingsError(_no_option(error, folder)) from error
    except (HydraException, OmegaConfBaseException) as error:
        raise SettingsError(_first_line(error)) from error
    except (yaml.YAMLError, RecursionError) as error:
        raise SettingsError(f"not valid YAML: {' '.join(str(error).split())}") from error
    except OSError as error:
        raise SettingsError(f"{error.filename or folder} cannot be read: {error.strerror}") from error
    except (ValueError, OverflowError) as error:
        raise SettingsError(f"{name} with {shown(' '.join(overrides))} cannot be read: {_first_line(error)}") from error


def _no_option(error: MissingConfigException, folder: Path) -> str:
    group, _, name = str(error.missing_cfg_file).partition("/")
    if not name:
        return f"the defaults of a file name {group!r}, and there is no {group}.yaml; {nearest(group, _names(folder))}"
    known = [each for each in error.options or () if not each.endswith("_schema")]
    meant = instead_of(group, name) if group in options_of_groups() else ""
    return f"{group}: there is no {name!r:.80}; {meant or nearest(name, known)}"


def _first_line(error: BaseException) -> str:
    """Returns the first line of what a library says, after the key that it is about, if it names one."""
    error = error.__cause__ or error
    key = getattr(error, "full_key", None)
    line = next(iter(str(error).splitlines()), type(error).__name__)
    return f"{key}: {line}" if key else line


def _keys_with(value: Any, sign: str, key: str = "") -> list[str]:
    """Returns the keys of texts that hold ``sign``, such as those of secrets that a run folder does not tell."""
    if isinstance(value, dict):
        return [each for name, one in value.items() for each in _keys_with(one, sign, f"{key}.{name}".lstrip("."))]
    if isinstance(value, list):
        return [each for number, one in enumerate(value) for each in _keys_with(one, sign, f"{key}[{number}]")]
    return [key] if isinstance(value, str) and sign in value else []


@cache
def register_schemas() -> None:
    """Tells Hydra the defaults of every option, as plain values: what may be in their place is looked at later."""
    Plugins.instance().register(_OwnFolder)
    store = ConfigStore.instance()
    store.store("settings", msgspec.to_builtins(Settings()))
    for group, options in options_of_groups().items():
        for option, kind in options.items():
            defaults = msgspec.to_builtins(kind())
            store.store(f"{option}_schema", defaults, group=group)
            if not (own_folder() / group / f"{option}.yaml").exists():
                store.store(option, defaults, group=group)


def _refuse_odd(overrides: Sequence[str]) -> None:
    """Raises SettingsError for overrides that Hydra would misread. Composed settings are checked elsewhere."""
    known, groups = list(Settings.__dataclass_fields__), options_of_groups()
    for override in overrides:
        key, _, value = override.lstrip("+~").partition("=")
        if key in groups and "=" in override and not re.match(r"['\"]?[a-zA-Z_]", value):
            meant = instead_of(key, value) or nearest(value, sorted(groups[key]))
            raise SettingsError(f"{key}: there is no {value[:80]!r}; {meant}")
        if key in ("algorithm", "train_algorithm") and (meant := own_class("algorithm", value.strip("'"))):
            raise SettingsError(f"{shown(override)} chooses nothing: {meant}")
        if is_below(key, "hydra"):
            raise SettingsError(f"{key} is an option of Hydra's, which only reads the files here: leave it out")
        if value.startswith("{") and _is_list(key):
            raise SettingsError(f"{key} must be a list, as {key}=[{value}]")
        if _SEVERAL.match(value):
            raise SettingsError(
                f"{shown(override)} gives several values; "
                f"one run takes one of them: start one for each; a list is written {key}=[a,b]"
            )
        if "=" not in override and not override.startswith("~"):
            stem = override.removesuffix(".yaml")
            named = stem != override or (own_folder() / f"{stem}.yaml").is_file()
            value = "true" if types_of(Settings).get(key) is bool else "…"
            meant = f"--config-name {stem}" if named else f"{key}={value}" if key in known else bare(override)
            meant = f"; did you mean {meant}?" if meant else ""
            raise SettingsError(f"{override!r} is not of the form key=value{meant}")
        if override.startswith("-"):
            raise SettingsError(f"unknown option {override!r}; settings are written key=value")
        if key.removesuffix(".name") in groups and key.endswith(".name"):
            raise SettingsError(f"{key}={value} chooses nothing: choose by {key.removesuffix('.name')}={value}")
        if key.split(".")[0].split("@")[0] not in known:
            chosen = next((each.partition("=")[2] for each in overrides if key_of(each) == "train_algorithm"), "")
            raise SettingsError(f"there is no key {key!r}; {meant_key(key, value, chosen)}")


def _with_homes(override: str) -> str:
    """Quotes paths that begin with ``~``: shells leave it in ``agent.model=~/x``, and Hydra's grammar lacks it."""
    if "'" in override or '"' in override:
        return override
    return re.sub(r"([=\[,:] *)(~[^,\]}]*)", lambda found: found[1] + quoted(found[2]), override)


def _added(override: str) -> str:
    """Lets Hydra take any key: those that there are not are refused with the nearest name. Groups are chosen."""
    key = override.split("=", 1)[0].lstrip("+")
    plain = override.lstrip("+")
    return plain if key in options_of_groups() else override if re.search("[~@/]", key) else f"++{plain}"
