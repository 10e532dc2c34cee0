"""A checkpoint's agent: what its manifest says of it, and the agent that is built from that."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

import msgspec

from digirl_dist.agent.plugins import AgentPlugin
from digirl_dist.emulator import BoxActions, DeviceActions, DiscreteActions, EmulatorSpec, ProductActions
from digirl_dist.errors import CheckpointError, SettingsError, UntrustedError
from digirl_dist.settings import Settings, conversion
from digirl_dist.settings.plugins import AGENT
from digirl_dist.settings.ranges import Few
from digirl_dist.settings.run_source import refuse_references, refuse_untrusted
from digirl_dist.storage.checkpoint import Checkpoint
from digirl_dist.types import Json

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
        spec = EmulatorSpec(_read(shapes["actions"]), shapes["vector_size"], size, shapes["labels"])
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


def _described(value: Any) -> Json:
    """Strict JSON knows no infinite numbers."""
    if isinstance(value, tuple):
        return [_described(each) for each in value]
    if kind := next((name for name, cls in _ACTIONS.items() if isinstance(value, cls)), None):
        return {"kind": kind, **{name: _described(each) for name, each in vars(value).items()}}
    return str(value) if isinstance(value, float) and not math.isfinite(value) else value


def _read(described: Mapping[str, Json]) -> Any:
    """Returns the actions that ``_described`` was told."""
    return _ACTIONS[described["kind"]](
        **{
            name: [*map(_read, value)] if name == "parts" else value
            for name, value in described.items()
            if name != "kind"
        }
    )
