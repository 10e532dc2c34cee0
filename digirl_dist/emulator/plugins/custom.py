"""``emulator=custom``: a class of the user's."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Any

from digirl_dist.capacity import TYPICAL, Needs
from digirl_dist.emulator import EmulatorSpec, OwnEmulator
from digirl_dist.emulator.plugins import Device, EmulatorPlugin
from digirl_dist.errors import SettingsError
from digirl_dist.settings.expert import MISSING
from digirl_dist.tasks import Task
from digirl_dist.user_code.blame import blaming
from digirl_dist.user_code.entry_point import derives_from, lacking, load_callable, load_entry_point, refuse_uncallable

_MEMBERS = ("spec", "tasks", "reset", "step", "close")


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
        if derives_from(kind, "gymnasium"):
            raise SettingsError(f"{named} is an environment of Gymnasium: choose emulator=gymnasium")
        lacks = lacking(kind, OwnEmulator, _MEMBERS)
        wrong = [f"lacks {lacks}, which an emulator's class must have"] if lacks else []
        if not isinstance(spec := getattr(kind, "spec", None), EmulatorSpec):
            wrong += [f"its spec is {spec!r:.100} and no EmulatorSpec"] if spec is not None else []
        elif spec.labels and not hasattr(kind, "labels"):
            wrong.append("its spec has labels=True, and it lacks labels() -> Sequence[Label]")
        needs = getattr(kind, "needs", TYPICAL)
        wrong += [] if isinstance(needs, Needs) else [f"its needs are {needs!r:.100} and no digirl_dist.capacity.Needs"]
        if wrong:
            raise SettingsError(f"{named}: {'; '.join(wrong)}")
        return Device(partial(kind, **self.kwargs), kind.spec, needs=needs)

    def tasks(self, task_set: str, split: str) -> Sequence[Task]:
        kind = load_entry_point(self.entry_point, "emulator.entry_point")
        refuse_uncallable(
            f"{self.entry_point}.tasks is called on the class with task_set and split, and cannot be",
            kind.tasks,
            [task_set, split],
        )
        with blaming(f"{self.entry_point}.tasks", SettingsError):
            found: Sequence[Task] = kind.tasks(task_set, split)
        if not isinstance(found, Sequence) or not found or not all(isinstance(each, Task) for each in found):
            raise SettingsError(
                f"{self.entry_point}.tasks({task_set!r}, {split!r}) returned {found!r:.100}, not a list of Task"
            )
        return found
