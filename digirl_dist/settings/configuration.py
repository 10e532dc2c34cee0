"""From YAML files and overrides to typed settings; refuses what is not valid before anything starts."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, fields, is_dataclass
from difflib import get_close_matches
from enum import Enum
from functools import cache
from pathlib import Path
from typing import Any, get_args, get_origin

import yaml
from hydra import compose, initialize_config_dir
from hydra.core.config_search_path import ConfigSearchPath
from hydra.core.config_store import ConfigStore
from hydra.core.global_hydra import GlobalHydra
from hydra.core.plugins import Plugins
from hydra.errors import HydraException, MissingConfigException, OverrideParseException
from hydra.plugins.search_path_plugin import SearchPathPlugin
from omegaconf import BooleanNode, DictConfig, OmegaConf, StringNode
from omegaconf.errors import (
    ConfigTypeError,
    InterpolationResolutionError,
    OmegaConfBaseException,
    ValidationError,
)

from digirl_dist import settings as schema
from digirl_dist.errors import SettingsError
from digirl_dist.plain_text import HIDDEN, hide, secrets_of, without_secrets_in
from digirl_dist.settings import Settings
from digirl_dist.settings.algorithms import algorithm_settings
from digirl_dist.settings.digirl_files import is_digirl, translated
from digirl_dist.settings.digirl_keys import KEYS, became
from digirl_dist.settings.keys import quoted, types_of
from digirl_dist.settings.nearest import near, nearest
from digirl_dist.settings.places import find_folder, own_folder
from digirl_dist.settings.plugins import ALGORITHM, COLLECTOR, KINDS, settings_classes
from digirl_dist.settings.ranges import bounds_of, described, refuse_out_of_range, shown
from digirl_dist.settings.safe_yaml import refuse_excess_in_files

_TRAINERS: dict[str, type] = {
    "inprocess": schema.InProcessSettings,
    "jax": schema.JaxSettings,
    "torchrun": schema.TorchrunSettings,
}
_ENGINES: dict[str, type] = {
    "openai": schema.OpenAIEngineSettings,
    "transformers": schema.TransformersEngineSettings,
}
_LISTED = 20
_ALL_KEYS = "docs/reference/settings.md has all keys"


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
        return any(override.lstrip("+~").split("=", 1)[0] == key for override in self.overrides)


def load(config_path: str, config_name: str, overrides: Sequence[str]) -> Settings:
    """Composes ``config_name`` below ``config_path`` with ``overrides``; it may be a file of DigiRL's.

    Raises SettingsError naming what is wrong.
    """
    composed = _compose(*translated(find_folder(config_path), config_name, overrides))
    given = OmegaConf.to_container(composed)
    hide(secrets_of(given))
    if hidden := _hidden_keys(given):
        raise SettingsError(
            f"{config_name}.yaml hides the secrets in {', '.join(hidden)}; give them again, as key=value"
        )
    try:
        if missing := sorted(OmegaConf.missing_keys(composed)):
            needed = missing[0].removesuffix(".name")
            raise SettingsError(f"{needed} must be given: {needed}=…")
        settings = OmegaConf.to_object(composed)
    except OmegaConfBaseException as error:
        raise SettingsError(_explain(error)) from error
    if isinstance(settings, Settings):
        _refuse_keys_of_others(settings)
    else:
        raise SettingsError(f"{config_name}.yaml is no configuration: let it begin with `defaults: [host, _self_]`")
    return settings


def merged(settings: Any, overrides: dict[str, Any], where: str) -> Any:
    """Returns ``settings`` with some values replaced and checked. Raises SettingsError saying ``where``."""
    try:
        found = OmegaConf.to_object(OmegaConf.merge(_strict(settings), overrides))
    except OverflowError as error:
        raise SettingsError(f"{where}: {', '.join(overrides)}: {_first_line(error)}") from error
    except (OmegaConfBaseException, ValueError) as error:
        raise SettingsError(f"{where}: {_explain(error)}") from error
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
    _register_schemas()
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
        raise SettingsError(_explain(error)) from error
    except (yaml.YAMLError, RecursionError) as error:
        raise SettingsError(f"not valid YAML: {' '.join(str(error).split())}") from error
    except OSError as error:
        raise SettingsError(f"{error.filename or folder} cannot be read: {error.strerror}") from error
    except (ValueError, OverflowError) as error:
        raise SettingsError(f"{name} with {shown(' '.join(overrides))} cannot be read: {_first_line(error)}") from error
    if OmegaConf.is_missing(composed, "collector"):  # in a folder of files that name none
        composed.collector = COLLECTOR.settings("ssh")()
    if OmegaConf.is_missing(composed, "engine"):
        composed.engine = schema.TransformersEngineSettings()
    return composed


def _hidden_keys(value: Any, key: str = "") -> list[str]:
    """Returns the keys of secrets that a run folder does not tell."""
    if isinstance(value, dict):
        return [each for name, entry in value.items() for each in _hidden_keys(entry, f"{key}.{name}".lstrip("."))]
    if isinstance(value, list):
        return [each for number, entry in enumerate(value) for each in _hidden_keys(entry, f"{key}[{number}]")]
    return [key] if isinstance(value, str) and HIDDEN in value else []


@cache
def _register_schemas() -> None:
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
            raise SettingsError(f"there is no key {key!r}; {_moved(key) or _near(key, known)}")


def _refuse_keys_of_others(settings: Settings) -> None:
    """A free key of an option that was not chosen, which Hydra adds to the one that was."""
    for group in options_of_groups():
        chosen = getattr(settings, group)
        if added := sorted(vars(chosen).keys() - types_of(type(chosen)).keys()):
            raise SettingsError(f"there is no key '{group}.{added[0]}' with {group}={chosen.name}")


def _with_homes(override: str) -> str:
    """Quotes paths that begin with ``~``: shells leave it in ``agent.model=~/x``, and Hydra's grammar lacks it."""
    if "'" in override or '"' in override:
        return override
    return re.sub(r"([=\[,] *)(~[^,\]]*)", lambda found: found[1] + quoted(found[2]), override)


def _free(override: str) -> str:
    """What goes on to the user's own classes, to processors and to servers has no schema, so names may be added."""
    key = override.split("=", 1)[0]
    return f"++{override}" if any(key == free or key.startswith(f"{free}.") for free in free_keys()) else override


@cache
def options_of_groups() -> dict[str, dict[str, type]]:
    """Returns what each option group chooses from, with the settings class of each option."""
    found = {kind.name: settings_classes(kind) for kind in KINDS if kind is not ALGORITHM}
    return {**found, "engine": _ENGINES, "trainer": _TRAINERS}


@cache
def free_keys() -> tuple[str, ...]:
    """Returns the keys whose values are mappings without a schema."""
    classes = [(group, kind) for group, options in options_of_groups().items() for kind in options.values()]
    classes += [("algorithm", schema.AlgorithmSettingsBase), ("judge", schema.JudgeSettings)]
    mappings = [f"{group}.{one.name}" for group, kind in classes for one in fields(kind) if "dict" in str(one.type)]
    return tuple(dict.fromkeys(mappings))


def _explain(error: Exception) -> str:
    """What Hydra says, without its internals, with the nearest valid name where a name is wrong."""
    for cause in _causes(error):
        match cause:
            case ValidationError() | ConfigTypeError() | InterpolationResolutionError() if cause.full_key:
                return _wrong_type(cause)
            case MissingConfigException(missing_cfg_file=str(option)) if "/" in option:
                group, name = option.rsplit("/", 1)
                known = [each for each in cause.options or () if not each.endswith("_schema")]
                return f"{group}: there is no {name!r}; {nearest(name, known)}"
    causes = [str(cause) for cause in _causes(error)]
    if wrong := re.search(r"Key '([^']+)' not in '(\w+)'(?:\s+full_key: (\S+))?", "\n".join(causes)):
        advice = _moved(wrong[1]) or _near(wrong[1], _fields(wrong[2]), _group_of(wrong[2]))
        return f"there is no key {wrong[3] or wrong[1]!r}; {advice}"
    if named := re.search(r"Key (\S+) \(\w+\) is incompatible with \(str\)", "\n".join(causes)):
        return f"a key is {named[1]}, which is no text: keys such as on, off, yes, no and 1 need quotes in YAML"
    text = "; ".join(dict.fromkeys(cause.splitlines()[0].strip() for cause in causes))
    if misplaced := re.search(r"Merge error: \w+ is not a subclass of (\w+)\. value: (\S+)", text):
        return _no_mapping(misplaced[1], misplaced[2])
    if ambiguous := re.search(r"Ambiguous value for argument '([^=']+)=", text):
        text += f"; a list is written as {ambiguous[1]}=[a,b], one value with commas as '{ambiguous[1]}=\"a,b\"'"
    return text


def _no_mapping(class_name: str, value: str) -> str:
    """Says how a file gives what settings of a class are for, if it has a value in their place."""
    if group := _group_of(class_name):
        return f"{group} is chosen in the file's defaults, as `- override {group}: {value}`; below {group} are its keys"
    named = [key for key in _keys() if any(kind.__name__ == class_name for kind in classes_at(key))]
    return f"{'.'.join(named[0])} must be given by its keys, not {value}"


def _wrong_type(error: Any) -> str:
    """Says what is wrong with the value of a key, and what it must be."""
    key = str(error.full_key)
    *path, last = key.split(".")
    hints = [types_of(kind, include_extras=True).get(last) for kind in classes_at(path)]
    if isinstance(error, ConfigTypeError):  # a list in place of a mapping, or the other way round
        hints.append(error.object_type)
    wanted = "a whole number from 1 to 4,096, or auto" if last == "bsize" else _wanted(key, hints)
    if not wanted or isinstance(error, InterpolationResolutionError):
        return f"{key}: {_first_line(error, with_key=False)[:200]}"
    if not isinstance(error, ValidationError):
        return f"{key} must be {wanted}"
    quotes = "; on, off, yes and no need quotes in YAML" if wanted == "a text" and isinstance(error.value, bool) else ""
    return f"{key} must be {wanted}, not {shown(error.value)}{quotes}"


def _wanted(key: str, hints: Sequence[Any]) -> str:
    """Returns in words what the first of some types takes; empty where there is nothing to say."""
    for hint in filter(None, hints):
        if bounds := bounds_of(hint):
            return described(bounds[0])
        for kind in (hint, *get_args(hint)):
            match get_origin(kind) or kind:
                case origin if origin is list:
                    return f"a list, as {key}=[a,b]"
                case origin if origin is dict:
                    return f"a mapping, as {key}={{a:b}}"
                case origin if origin is bool:
                    return "true or false"
                case origin if origin is str:
                    return "a text"
                case origin if isinstance(origin, type) and issubclass(origin, Enum):
                    return f"one of {', '.join(origin.__members__)}"
                case origin if is_dataclass(origin):
                    return f"given by its keys, as {key}.{fields(origin)[0].name}=…"
    return ""


def classes_at(path: Sequence[str]) -> list[type]:
    """Returns the settings classes that may stand at a place of the configuration, such as ``limits``, or none."""
    level: list[type] = [Settings]
    for place, step in enumerate(path):
        if place == 0 and step in (groups := options_of_groups()):
            level = list(groups[step].values())
        elif place == 0 and step == "algorithm":
            level = [algorithm_settings()]
        else:
            found = [types_of(kind).get(step) for kind in level]
            level = [kind for kind in found if isinstance(kind, type) and is_dataclass(kind)]
    return level


def _keys(*path: str) -> Iterator[tuple[str, ...]]:
    """Yields all keys of the configuration below a place of it, as paths."""
    for kind in classes_at(path):
        for name, value in types_of(kind).items():
            yield (*path, name)
            if is_dataclass(value) or (not path and name in (*options_of_groups(), "algorithm")):
                yield from _keys(*path, name)


def _near(name: str, known: Sequence[str], group: str | None = None) -> str:
    """Asks for the nearest key: of the ``known`` ones, or one of almost that name at another place.

    The keys of other options of the ``group`` are none: ``emulator.task`` is not for every emulator.
    """
    places = [path for path in dict.fromkeys(_keys()) if path[0] != group]
    close = get_close_matches(name, {path[-1] for path in places}, n=1, cutoff=0.8)
    if not close or close[0] in known:
        return nearest(name, known) if len(known) <= _LISTED else near(name, known) or _ALL_KEYS
    found = [repr(".".join(path)) for path in places if path[-1] == close[0]]
    return f"did you mean {' or '.join(found[:5])}?"


def _causes(error: BaseException | None) -> Iterator[BaseException]:
    while error is not None:
        yield error
        error = error.__cause__ or error.__context__


def _group_of(class_name: str) -> str | None:
    named = {kind.__name__: group for group, options in options_of_groups().items() for kind in options.values()}
    return named.get(class_name)


def _fields(class_name: str) -> list[str]:
    known = getattr(schema, class_name, None)
    return [each.name for each in fields(known)] if known is not None else []


def _moved(key: str) -> str | None:
    """Says what DigiRL's key of that name is here; None for a key that it does not have."""
    if key not in KEYS:
        return None
    places = became(key, {key: 1, "train_mode": "offline", "task_mode": "evaluate"}).settings
    if not places:
        return f"DigiRL's {key} becomes something else here: `digirl-dist migrate FILE` tells what"
    return f"DigiRL's {key} is {next(iter(places))} here"


def _first_line(error: BaseException, with_key: bool = True) -> str:
    lines = str(error).splitlines() or [type(error).__name__]
    if not with_key:
        return lines[0]
    key = next((line.split(":", 1)[1].strip() for line in lines if line.strip().startswith("full_key:")), "")
    return f"{key}: {lines[0]}" if key else lines[0]
