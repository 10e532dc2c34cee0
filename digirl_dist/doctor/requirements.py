"""An emulator's requirements on its machine."""

from __future__ import annotations

from dataclasses import dataclass

from digirl_dist import capacity
from digirl_dist.emulator.plugins import EmulatorPlugin
from digirl_dist.emulator.plugins.android import AndroidSettings
from digirl_dist.settings import EmulatorSettings


@dataclass(frozen=True)
class AndroidRequirements:
    """The fields of the emulator's settings. ``avd`` None: devices by serial, for which adb is enough."""

    avd: str | None = None
    sdk_path: str | None = None
    avd_home: str | None = None
    first_port: int = 5600
    snapshot: str | None = None


@dataclass(frozen=True)
class MachineRequirements:
    """Requirements of one emulator."""

    emulator: str
    memory_mb: int
    cores: float
    """Number of cores that it keeps busy."""
    browser: bool = False
    android: AndroidRequirements | None = None


def requirements_of(settings: EmulatorSettings, takes: capacity.Needs) -> MachineRequirements:
    """Returns an emulator's requirements; ``takes`` is the estimate behind ``bsize: auto``."""
    memory_mb, browser = round(takes.memory_mib), isinstance(settings, EmulatorPlugin) and settings.browser
    android = _android(settings) if isinstance(settings, AndroidSettings) else None
    return MachineRequirements(settings.name, memory_mb, takes.cores, browser, android)


def _android(settings: AndroidSettings) -> AndroidRequirements:
    return AndroidRequirements(
        settings.avd, settings.sdk_path, settings.avd_home, settings.first_port, settings.snapshot
    )
