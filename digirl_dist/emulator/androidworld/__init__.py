"""AndroidWorld's task suites. Its package, which is on no registry, is imported when a suite is asked for."""

from digirl_dist.emulator.androidworld.emulator import AndroidWorldEmulator
from digirl_dist.emulator.androidworld.suite import androidworld_tasks, every_task

__all__ = ["AndroidWorldEmulator", "androidworld_tasks", "every_task"]
