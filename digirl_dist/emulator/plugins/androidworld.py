"""``emulator=androidworld``: the task suites of AndroidWorld on Android devices over adb."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import ClassVar

from digirl_dist.emulator.plugins import Device
from digirl_dist.emulator.plugins.android import AndroidSettings
from digirl_dist.settings.workers import InstallSettings
from digirl_dist.tasks import Task


@dataclass
class AndroidWorldSettings(AndroidSettings):
    """AndroidWorld's tasks, initialised and judged by its own package, on the devices of ``emulator=android``.

    The package is on no registry: docs/android.md has the lines that install it.
    """

    machine: ClassVar[str | None] = "android"
    name: str = "androidworld"
    family: str = "android_world"
    """The suite: android_world (116 tasks) and its parts android and information_retrieval, miniwob, miniwob_subset."""
    task: str | list[str] = "all"
    """A task by name (ClockTimerEntry), several as a list or with commas between them, or ``all`` of the suite."""

    def build(self) -> Device:
        from digirl_dist.emulator.androidworld.emulator import AndroidWorldEmulator

        # Each task has a limit of steps of its own, by which the emulator ends its episodes.
        return replace(super().build(), factory=partial(AndroidWorldEmulator, self, self.family), max_steps=None)

    def default_tasks(self, split: str) -> Sequence[Task]:
        from digirl_dist.emulator.androidworld import androidworld_tasks

        return androidworld_tasks(self.family, self.task)

    def known_tasks(self, split: str) -> Sequence[Task]:
        from digirl_dist.emulator.androidworld import every_task

        return every_task(self.family)

    def can_run(self, task: Task, judged_elsewhere: bool) -> bool:
        return False

    def setup_variables(self, install: InstallSettings) -> Mapping[str, str | None]:
        snapshot = {"ANDROID_SNAPSHOT_MODULE": "digirl_dist.emulator.androidworld.apps"}
        return {**super().setup_variables(install), **snapshot}
