"""``emulator=android``: Android devices over adb."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import partial

from digirl_dist.capacity import Needs
from digirl_dist.emulator.android.options import AndroidOptions
from digirl_dist.emulator.plugins import Device, EmulatorPlugin
from digirl_dist.settings.workers import InstallSettings
from digirl_dist.tasks import Task


@dataclass
class AndroidSettings(AndroidOptions, EmulatorPlugin):
    """Android devices over adb: instances of one AVD that are started here, or devices by serial. See docs/android.md.

    Paths are those of the worker; null stands for the usual places.
    """

    name: str = "android"

    def build(self) -> Device:
        from digirl_dist.emulator.android.emulator import AndroidEmulator
        from digirl_dist.emulator.android.tasks import MAX_STEPS, android_spec

        spec = android_spec(self)
        needs = Needs(2500, 1.0) if self.avd else Needs(100, 0.1)
        return Device(partial(AndroidEmulator, self), spec, max_steps=MAX_STEPS, extras=("android",), needs=needs)

    def default_tasks(self, split: str) -> Sequence[Task]:
        from digirl_dist.emulator.android.tasks import android_tasks

        return android_tasks(split)

    def setup_variables(self, install: InstallSettings) -> Mapping[str, str | None]:
        return {
            "ANDROID_SDK": self.sdk_path,
            "ANDROID_AVD_HOME": self.avd_home,
            "ANDROID_AVD": self.avd,
            "ANDROID_SNAPSHOT": self.snapshot,
            "ANDROID_IMAGE": install.android.image,
            "ANDROID_TOOLS_URL": install.android.tools_url,
            "ANDROID_ACCEPT_LICENSES": "yes" if install.android.accept_licenses else None,
        }
