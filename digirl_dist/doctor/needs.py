"""What an emulator needs of the machine that it runs on."""

from __future__ import annotations

from dataclasses import dataclass

from digirl_dist import capacity
from digirl_dist.settings import AndroidSettings, EmulatorSettings, MiniwobSettings

POLICY_MB = 700
"""The worker program with torch and a small policy."""


@dataclass(frozen=True)
class AndroidNeeds:
    """As in the emulator's settings. ``avd`` None: devices by serial, for which adb is enough."""

    avd: str | None = None
    sdk_path: str | None = None
    avd_home: str | None = None
    first_port: int = 5600
    snapshot: str | None = None


@dataclass(frozen=True)
class Needs:
    """Of one emulator."""

    emulator: str
    memory_mb: int
    cores: float
    """Cores that it keeps busy."""
    browser: bool = False
    android: AndroidNeeds | None = None


def needs_of(settings: EmulatorSettings, takes: capacity.Needs) -> Needs:
    """``takes``: what ``bsize: auto`` goes by."""
    memory_mb, browser = round(takes.memory_mib), isinstance(settings, MiniwobSettings)
    android = _android(settings) if isinstance(settings, AndroidSettings) else None
    return Needs(settings.name, memory_mb, takes.cores, browser, android)


def _android(settings: AndroidSettings) -> AndroidNeeds:
    return AndroidNeeds(settings.avd, settings.sdk_path, settings.avd_home, settings.first_port, settings.snapshot)
