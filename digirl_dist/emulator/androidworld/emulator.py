"""AndroidWorld behind the Emulator seam."""

from __future__ import annotations

from contextlib import suppress
from dataclasses import replace
from functools import partial
from typing import Any

from digirl_dist.emulator.android.adb_device import COMMAND_S
from digirl_dist.emulator.android.emulator import AndroidEmulator
from digirl_dist.emulator.android.options import AndroidOptions
from digirl_dist.emulator.android.source import LOAD_S
from digirl_dist.emulator.androidworld import blamed, instance, package_needed, steps_allowed, suite
from digirl_dist.emulator.touch_actions import DeviceAction
from digirl_dist.errors import EmulatorError, on_error
from digirl_dist.tasks import Task
from digirl_dist.trajectory import Observation, Transition
from digirl_dist.types import Json


class AndroidWorldEmulator(AndroidEmulator):
    """Fulfils ``Emulator``.

    A task's ``id`` is its name in the suite, its parameters follow from the ticket's seed, and ``Observation.text`` is
    the goal that it makes of them. The package initialises the task on the device. As in its own episodes, success is
    judged where the agent says ``done`` (whose ``text``, if there is one, is the answer to a question), or where a page
    of MiniWoB++ ends; the reward is the judgement, in [0, 1], and steps are limited by the task's complexity.
    """

    def __init__(self, settings: AndroidOptions, family: str) -> None:
        """``family``: the suite. Raises SettingsError or EmulatorError with the remedy."""
        self._suite = suite(family)
        self._instance: Any = None
        self._left = 0
        with package_needed():
            from digirl_dist.emulator.androidworld import world
        self._package_of = world.package_of
        super().__init__(settings)
        with on_error(self.close):
            command = self._server.command(self.device.serial)
            adb = world.Adb(*command, COMMAND_S, partial(self._source.wait, LOAD_S))
            self._world = world.world_of(adb, self.device.frame, self.device.window)

    def reset(self, task: Task, seed: int) -> Observation:
        self._tear_down()
        return super().reset(task, seed)

    def step(self, action: Json) -> Transition:
        taken = super().step(action)
        self._left -= 1
        return taken if taken.terminated or self._left > 0 else replace(taken, truncated=True)

    def close(self) -> None:
        with suppress(EmulatorError):
            self._tear_down()
        super().close()

    def _prepare(self, task: Task, seed: int) -> Task:
        made = instance(task.id, self._suite, seed)
        self._require_apps(task.id, made.app_names)
        with blamed(f"initialise {task.id}"):
            made.initialize_task(self._world)
            goal = made.goal
        self._instance, self._left = made, steps_allowed(made)
        if made.start_on_home_screen:
            self.device.perform(DeviceAction("home"))
        return replace(task, instruction=goal)

    def _judged(self, task: Task, wanted: DeviceAction) -> tuple[float, bool]:
        if not wanted.ends and not self._page_ended():
            return 0.0, False
        if wanted.type == "impossible":
            return 0.0, True
        self._world.interaction_cache = wanted.text if wanted.ends else ""
        with blamed(f"judge {task.id}"):
            return float(self._instance.is_successful(self._world)), True

    def _page_ended(self) -> bool:
        """Returns whether a page of MiniWoB++ has given its reward; other tasks end when the agent says so."""
        if not self._instance.name.lower().startswith("miniwob"):
            return False
        from android_world.task_evals.miniwob import miniwob_base

        with blamed(f"read the reward of {self._instance.name}"):
            return bool(miniwob_base.is_episode_terminated(self._world))

    def _require_apps(self, name: str, apps: tuple[str, ...]) -> None:
        """Raises EmulatorError for an app that is not installed: AndroidWorld would go on without a word."""
        for app in apps:
            package = self._package_of(app)
            if package is not None and not self.device.installed(package):
                raise EmulatorError(
                    f"{name} needs the app {app} ({package}), which is not installed on {self.device.serial}: put "
                    "AndroidWorld's apps there by `python -m digirl_dist.emulator.androidworld.apps AVD SNAPSHOT`"
                )

    def _tear_down(self) -> None:
        """Undoes an episode by the task's own means where there is no instance whose state is thrown away."""
        made, self._instance = self._instance, None
        if made is not None and self._settings.avd is None:
            with blamed(f"tear down {made.name}"):
                made.tear_down(self._world)
