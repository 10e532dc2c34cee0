"""What the ranks of one launch must have in common, as text by name."""

from __future__ import annotations

import platform
from collections.abc import Iterator
from importlib import metadata
from typing import Any

import yaml

import digirl_dist
from digirl_dist.emulator.plugins import Device
from digirl_dist.settings import Settings, configuration
from digirl_dist.storage.digest import digest

_OWN = ("save_path", "loggers", "logger_project", "wandb_project")
"""Settings of which rank 0 alone makes use."""
_PACKAGES = ("torch", "numpy", "gymnasium", "jax")


def facts_of(settings: Settings, device: Device) -> dict[str, str]:
    """Returns settings (secrets redacted), the emulator's spaces, its tasks, and versions."""
    plain: dict[str, Any] = yaml.safe_load(configuration.to_yaml(settings))
    found = {key: value for key, value in _flat(plain, "") if key not in _OWN}
    spec = device.spec
    found |= {"the actions": str(spec.actions), "the observations": f"{spec.vector_size} numbers, {spec.image_size}"}
    found["the tasks"] = f"{len(device.tasks)} with digest {digest(repr(list(device.tasks)).encode())[:12]}"
    found["Python"] = ".".join(platform.python_version_tuple()[:2])
    found["digirl_dist"] = digirl_dist.__version__
    return found | {name: _version(name) for name in _PACKAGES}


def _flat(value: Any, key: str) -> Iterator[tuple[str, str]]:
    if isinstance(value, dict) and value:
        for name, entry in value.items():
            yield from _flat(entry, f"{key}.{name}" if key else str(name))
    else:
        yield key, str(value)


def _version(name: str) -> str:
    try:
        return metadata.version(name)
    except metadata.PackageNotFoundError:
        return "none"
