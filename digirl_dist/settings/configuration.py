"""From YAML files and overrides to typed settings; refuses what is not valid before anything starts."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any, get_args, get_origin

import yaml
from hydra import compose, initialize_config_dir
from hydra.core.config_search_path import ConfigSearchPath
from hydra.core.config_store import ConfigStore
from hydra.core.global_hydra import GlobalHydra
from hydra.core.plugins import Plugins
from hydra.errors import HydraException, OverrideParseException
from hydra.plugins.search_path_plugin import SearchPathPlugin
from omegaconf import BooleanNode, DictConfig, OmegaConf, StringNode
from omegaconf.errors import OmegaConfBaseException, ValidationError

from digirl_dist import settings as schema
from digirl_dist.errors import SettingsError
from digirl_dist.plain_text import HIDDEN, hide, secrets_of, without_secrets_in
from digirl_dist.settings import Settings
from digirl_dist.settings.digirl_files import is_digirl, translated
from digirl_dist.settings.key_places import free_keys, options_of_groups
from digirl_dist.settings.keys import key_of, keys_of, quoted, types_of
from digirl_dist.settings.nearest import nearest
from digirl_dist.settings.paths import Input
from digirl_dist.settings.places import find_folder, own_folder
from digirl_dist.settings.plugins import COLLECTOR
from digirl_dist.settings.ranges import refuse_out_of_range, shown
from digirl_dist.settings.refusals import digirl_key, explained, first_line, nearest_key
from digirl_dist.settings.safe_yaml import refuse_excess_in_files
from digirl_dist.settings.unread import refuse_unread_overrides


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
    given = OmegaConf.to_container(composed)
    hide(secrets_of(given))
    if cut := _keys_with(given, "\0"):
        raise SettingsError(f"{cut[0]} has a NUL in it, which no command, path or address may have: leave it out")
    if hidden := _keys_with(given, HIDDEN):
        raise SettingsError(
            f"{config_name}.yaml hides the secrets in {', '.join(hidden)}; give them again, as key=value"
        )
    try:
        if missing := sorted(OmegaConf.missing_keys(composed)):
            needed = missing[0].removesuffix(".name")
            raise SettingsError(f"{needed} must be given: {needed}=…")
        settings = OmegaConf.to_object(composed)
    except OmegaConfBaseException as error:
        raise SettingsError(explained(error)) from error
    if isinstance(settings, Settings):
        _refuse_keys_of_others(settings)
        _refuse_nested_texts(settings)
        refuse_unread_overrides(settings, overrides)
    else:
        raise SettingsError(f"{config_name}.yaml is no configuration: let it begin with `defaults: [host, _self_]`")
    return settings


def merged(settings: Any, overrides: dict[str, Any], where: str) -> Any:
    """Returns ``settings`` with some values replaced and checked. Raises SettingsError saying ``where``."""
    try:
        found = OmegaConf.to_object(OmegaConf.merge(_strict(settings), overrides))
    except OverflowError as error:
        raise SettingsError(f"{where}: {', '.join(overrides)}: {first_line(error)}") from error
    except (OmegaConfBaseException, ValueError) as error:
        raise SettingsError(f"{where}: {explained(error)}") from error
    refuse_out_of_range(found, f"{where}: ")
    return found


def to_yaml(settings: Settings) -> str:
    """Returns the whole configuration for the run folder, secrets hidden.

    It is itself a configuration: ``--config-path RUN --config-name config`` composes it.
    """
    plain = as_mapping(settings)
    schemas = [{group: f"{plain[group]['name']}_schema"} for group in options_of_groups()]
    return OmegaConf.to_yaml({"defaults": ["settings", *schemas, "_self_"], **plain})


def as_mapping(settings: Any) -> dict[str, Any]:
    """Returns settings, or a part of them, as plain data, secrets hidden."""
    plain: dict[str, Any] = without_secrets_in(OmegaConf.to_container(OmegaConf.structured(settings), enum_to_str=True))
    return plain


def _compose(folder: Path, name: str, overrides: Sequence[str]) -> DictConfig:
    folders = list(dict.fromkeys([folder, own_folder()]))
    names = sorted({path.stem for each in folders for path in each.glob("*.yaml")})
    if name.removesuffix(".yaml") not in names:
        raise SettingsError(f"there is no {name}.yaml in {folder}; {nearest(name, names)}")
    refuse_excess_in_files(folder)
    register_schemas()
    return composed_by_hydra(folder, name, overrides)


def composed_by_hydra(folder: Path, name: str, overrides: Sequence[str]) -> DictConfig:
    _refuse_unknown_keys(overrides)
    GlobalHydra.instance().clear()
    try:
        with initialize_config_dir(str(folder), version_base="1.3"):
            composed = compose(name.removesuffix(".yaml"), overrides=[_free(_with_homes(each)) for each in overrides])
    except OverrideParseException as error:
        key = str(error.override).partition("=")[0]
        advice = f"a value with blanks, quotes, brackets or commas needs quotes within the shell's: '{key}=\"...\"'"
        raise SettingsError(f"{shown(error.override)} cannot be understood; {advice}") from error
    except (HydraException, OmegaConfBaseException) as error:
        raise SettingsError(explained(error)) from error
    except (yaml.YAMLError, RecursionError) as error:
        raise SettingsError(f"not valid YAML: {' '.join(str(error).split())}") from error
    except OSError as error:
        raise SettingsError(f"{error.filename or folder} cannot be read: {error.strerror}") from error
    except (ValueError, OverflowError) as error:
        raise SettingsError(f"{name} with {shown(' '.join(overrides))} cannot be read: {first_line(error)}") from error
    if OmegaConf.is_missing(composed, "collector"):  # in a folder of files that name none
        composed.collector = COLLECTOR.settings("ssh")()
    if OmegaConf.is_missing(composed, "engine"):
        composed.engine = schema.TransformersEngineSettings()
    return composed


def _keys_with(value: Any, sign: str, key: str = "") -> list[str]:
    """Returns the keys of texts that hold ``sign``, such as those of secrets that a run folder does not tell."""
    if isinstance(value, dict):
        return [each for name, one in value.items() for each in _keys_with(one, sign, f"{key}.{name}".lstrip("."))]
    if isinstance(value, list):
        return [each for number, one in enumerate(value) for each in _keys_with(one, sign, f"{key}[{number}]")]
    return [key] if isinstance(value, str) and sign in value else []


@cache
def register_schemas() -> None:
    Plugins.instance().register(_OwnFolder)
    store = ConfigStore.instance()
    settings = _strict(Settings)
    settings.collector = settings.engine = "???"  # a default of one type would refuse the others
    settings.trainer = _strict(schema.TrainerSettings)
    store.store("settings", settings)
    for group, options in options_of_groups().items():
        for option, kind in options.items():
            store.store(f"{option}_schema", _strict(kind), group=group)


def _copied_as_it_is(node: Any, memo: dict[int, Any]) -> Any:
    """Returns a copy of a node; OmegaConf's own would be of its own class, and forget the stricter one."""
    copied = type(node)()
    node._deepcopy_impl(copied, memo)
    return copied


class _TrueOrFalse(BooleanNode):
    """OmegaConf takes any number for a truth value."""

    def _validate_and_convert_impl(self, value: Any) -> bool:
        text = str(value)
        if text.lstrip("+-").isdecimal() and text not in ("0", "1"):
            raise ValidationError("Value '$VALUE' is neither true nor false")
        return bool(super()._validate_and_convert_impl(value))

    __deepcopy__ = _copied_as_it_is


class _Text(StringNode):
    """OmegaConf takes a truth value, which ``no`` and ``on`` are to YAML, for the text "False" or "True"."""

    def _validate_and_convert_impl(self, value: Any) -> str:
        if isinstance(value, bool):
            raise ValidationError("Value '$VALUE' is no text")
        return str(super()._validate_and_convert_impl(value))

    __deepcopy__ = _copied_as_it_is


_STRICT: dict[type, type] = {BooleanNode: _TrueOrFalse, StringNode: _Text}


def _strict(settings: Any) -> DictConfig:
    """Returns a settings class, or an object of one, as OmegaConf has it, with nodes that turn no kind into another."""
    found: DictConfig = OmegaConf.structured(settings)
    _make_strict(found)
    return found


def _make_strict(found: DictConfig) -> None:
    for key in found:
        node = found._get_node(key)
        if isinstance(node, DictConfig) and not (node._is_none() or node._is_missing()):
            _make_strict(node)
        elif type(node) in _STRICT:
            node.__class__ = _STRICT[type(node)]


def _refuse_unknown_keys(overrides: Sequence[str]) -> None:
    """A misspelt key at the top level; what lies deeper is checked while composing."""
    known, groups = list(Settings.__dataclass_fields__), options_of_groups()
    for override in overrides:
        key, _, value = override.lstrip("+~").partition("=")
        if key in groups and value and not re.match(r"['\"]?[a-zA-Z_]", value):
            raise SettingsError(f"{key}: there is no {value[:80]!r}; {nearest(value, sorted(groups[key]))}")
        if "=" not in override and not override.startswith("~"):
            raise SettingsError(f"{override!r} is not of the form key=value")
        if override.startswith("-"):
            raise SettingsError(f"unknown option {override!r}; settings are written key=value")
        if key.split(".")[0].split("@")[0] not in known:
            raise SettingsError(f"there is no key {key!r}; {digirl_key(key) or nearest_key(key, known)}")


def _refuse_keys_of_others(settings: Settings) -> None:
    """A free key of an option that was not chosen, which Hydra adds to the one that was; or its name, which chooses
    nothing."""
    for group, options in options_of_groups().items():
        chosen = getattr(settings, group)
        own = {kind: name for name, kind in options.items()}.get(type(chosen))
        if own != chosen.name:
            raise SettingsError(
                f"{group}.name={chosen.name} chooses nothing, it is {group}={own} still: choose by the command line's "
                f"{group}={chosen.name}, or in the defaults of a file, as `- override {group}: {chosen.name}`"
            )
        if added := sorted(vars(chosen).keys() - types_of(type(chosen)).keys()):
            raise SettingsError(f"there is no key '{group}.{added[0]}' with {group}={chosen.name}")


def _refuse_nested_texts(settings: Settings) -> None:
    """A list or a mapping among texts, which OmegaConf takes as it is."""
    for key in keys_of(settings):
        if get_origin(key.hint) is list and get_args(key.hint)[0] in (str, Input):
            for place, value in enumerate(key.value):
                if not isinstance(value, str):
                    raise SettingsError(f"{key.name}[{place}] must be a text, not {shown(value)}")


def _with_homes(override: str) -> str:
    """Quotes paths that begin with ``~``: shells leave it in ``agent.model=~/x``, and Hydra's grammar lacks it."""
    if "'" in override or '"' in override:
        return override
    return re.sub(r"([=\[,] *)(~[^,\]]*)", lambda found: found[1] + quoted(found[2]), override)


def _free(override: str) -> str:
    """What goes on to the user's own classes, to processors and to servers has no schema, so names may be added."""
    key = override.split("=", 1)[0]
    return f"++{override}" if any(key == free or key.startswith(f"{free}.") for free in free_keys()) else override
