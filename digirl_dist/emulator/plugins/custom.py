"""``emulator=custom``: a class of the user's."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Any

from digirl_dist.capacity import TYPICAL
from digirl_dist.emulator import EmulatorSpec
from digirl_dist.emulator.plugins import Device, EmulatorPlugin
from digirl_dist.errors import SettingsError
from digirl_dist.settings.expert import MISSING
from digirl_dist.tasks import Task
from digirl_dist.user_code.blame import blaming
from digirl_dist.user_code.entry_point import load_callable, load_entry_point


@dataclass
class CustomEmulatorSettings(EmulatorPlugin):
    """Your own emulator. ``entry_point: my_file:MyDevice`` names a class that implements
    ``digirl_dist.emulator.Emulator`` and has two more class attributes: ``spec`` (an EmulatorSpec) and
    ``tasks(task_set, split)`` (a list of Task)."""

    name: str = "custom"
    entry_point: str = MISSING
    """Your class, ``my_file:MyEmulator``."""
    kwargs: dict[str, Any] = field(default_factory=dict)
    """Keyword arguments of your class."""

    def build(self) -> Device:
        named = f"emulator.entry_point={self.entry_point}"
        kind: Any = load_callable(self.entry_point, "emulator.entry_point", [], self.kwargs)
        if missing := [name for name in ("spec", "tasks", "reset", "step", "close") if not hasattr(kind, name)]:
            raise SettingsError(f"{named} lacks {' and '.join(missing)}, which an emulator's class must have")
        if not isinstance(kind.spec, EmulatorSpec):
            raise SettingsError(f"{named}: its spec is {kind.spec!r:.100} and no EmulatorSpec")
        if kind.spec.labels and not hasattr(kind, "labels"):
            raise SettingsError(f"{named}: its spec has labels=True, and it lacks labels()")
        return Device(partial(kind, **self.kwargs), kind.spec, needs=getattr(kind, "needs", TYPICAL))

    def tasks(self, task_set: str, split: str) -> Sequence[Task]:
        with blaming(f"{self.entry_point}.tasks", SettingsError):
            found: Sequence[Task] = load_entry_point(self.entry_point, "emulator.entry_point").tasks(task_set, split)
        if not isinstance(found, Sequence) or not found or not all(isinstance(each, Task) for each in found):
            asked = f"tasks({task_set!r}, {split!r})"
            raise SettingsError(f"{self.entry_point}.{asked} returned {found!r:.100}, not a list of Task")
        return found
