"""What the ranks of one launch must have in common, as text by name."""

from __future__ import annotations

import platform

import digirl_dist
from digirl_dist.emulator.plugins import Device
from digirl_dist.settings import Settings, configuration
from digirl_dist.settings.keys import flat
from digirl_dist.storage.machine import version_of
from digirl_dist.storage.provenance import tasks_in_a_word

_OWN = ("save_path", "loggers", "logger_project", "wandb_project")
"""Settings of which rank 0 alone makes use."""
_PACKAGES = ("torch", "numpy", "gymnasium", "jax")


def facts_of(settings: Settings, device: Device) -> dict[str, str]:
    """Returns settings (secrets redacted), the emulator's spaces, its tasks, and versions."""
    plain = flat(configuration.as_mapping(settings))
    found = {key: str(value) for key, value in plain if key not in _OWN}
    spec = device.spec
    found |= {"the actions": str(spec.actions), "the observations": f"{spec.vector_size} numbers, {spec.image_size}"}
    found["the tasks"] = tasks_in_a_word(device.tasks)
    found["Python"] = ".".join(platform.python_version_tuple()[:2])
    found["digirl_dist"] = digirl_dist.__version__
    return found | {name: version_of(name) or "none" for name in _PACKAGES}
