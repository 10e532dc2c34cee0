"""A checkpoint's agent: what its manifest says of it, and the agent that is built from that."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

import msgspec

from digirl_dist.agent.plugins import AgentPlugin
from digirl_dist.emulator import Actions, BoxActions, DeviceActions, DiscreteActions, EmulatorSpec, ProductActions
from digirl_dist.errors import CheckpointError, SettingsError, UntrustedError
from digirl_dist.settings import Settings, conversion
from digirl_dist.settings.plugins import AGENT
from digirl_dist.settings.ranges import Few
from digirl_dist.settings.run_source import refuse_references, refuse_untrusted
from digirl_dist.storage.checkpoint import Checkpoint
from digirl_dist.types import Json, Natural

_ACTIONS = {"device": DeviceActions, "discrete": DiscreteActions, "box": BoxActions, "product": ProductActions}


def describe_policy(settings: Settings, spec: EmulatorSpec) -> dict[str, Json]:
    """Returns the agent's settings, secrets hidden, and the shapes of the emulator that it fits."""
    shapes = {
        "actions": _described(spec.actions),
        "vector_size": spec.vector_size,
        "image_size": spec.image_size,
        "labels": spec.labels,
    }
    return {"agent": conversion.as_mapping(settings.agent), "emulator": shapes}


def agent_settings_of(checkpoint: Checkpoint, trust: bool = False) -> tuple[AgentPlugin, EmulatorSpec]:
    """Returns what ``describe_policy`` was told.

    Raises CheckpointError if the manifest does not say, UntrustedError for what it names (see ``settings.trust``).
    """
    path = checkpoint.folder / "manifest.json"
    try:
        about, shapes = checkpoint.policy["agent"], checkpoint.policy["emulator"]
        size = msgspec.convert(shapes["image_size"], tuple[Few, Few] | None)
        vector_size = msgspec.convert(shapes["vector_size"], Natural)
        spec = EmulatorSpec(_read(shapes["actions"]), vector_size, size, shapes["labels"])
        default = AGENT.settings(about["name"])()
        refuse_references(about, path)
        settings = conversion.merged(default, about, str(path))
        assert isinstance(settings, AgentPlugin)
        if not settings.suits.fits(spec):
            raise SettingsError(f"agent={about['name']} is made for {settings.suits.value}, not {spec.described()}")
    except UntrustedError:
        raise
    except (AttributeError, KeyError, TypeError, ValueError, ModuleNotFoundError, SettingsError) as error:
        raise CheckpointError(
            f"{path} does not say which agent it is of ({error!r}): restore it, or take another checkpoint"
        ) from error
    refuse_untrusted(settings, path, trust, "agent.")
    return settings, spec


def _described(actions: Actions) -> dict[str, Json]:
    kind = next(name for name, cls in _ACTIONS.items() if isinstance(actions, cls))
    return {"kind": kind, **{name: _plain(value) for name, value in vars(actions).items()}}


def _plain(value: Any) -> Json:
    """Strict JSON knows no infinite numbers."""
    if isinstance(value, tuple):
        return [_plain(each) for each in value]
    if isinstance(value, DiscreteActions | BoxActions):
        return _described(value)
    return str(value) if isinstance(value, float) and not math.isfinite(value) else value


def _read(described: Mapping[str, Json]) -> Actions:
    values = {name: value for name, value in described.items() if name != "kind"}
    match described["kind"]:
        case "box":
            return BoxActions(*msgspec.convert([values["low"], values["high"]], list[tuple[float, ...]], strict=False))
        case "product":
            parts = [_read(part) for part in values["parts"]]
            return ProductActions(tuple(part for part in parts if isinstance(part, DiscreteActions | BoxActions)))
        case "discrete":
            return DiscreteActions(msgspec.convert(values["n"], Natural))
    return DeviceActions(**{name: msgspec.convert(value, tuple[str, ...]) for name, value in values.items()})
