"""Android devices over adb: instances of an AVD that are started here, or devices by serial."""

from digirl_dist.emulator.android.emulator import AndroidEmulator
from digirl_dist.emulator.android.tasks import MAX_STEPS, android_spec, android_tasks

__all__ = ["MAX_STEPS", "AndroidEmulator", "android_spec", "android_tasks"]
