"""``emulator=miniwob``: MiniWoB++ pages in headless Chromium."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from typing import ClassVar

from digirl_dist.capacity import Needs
from digirl_dist.emulator.plugins import Device, EmulatorPlugin
from digirl_dist.settings.expert import expert
from digirl_dist.settings.ranges import FewOrNone
from digirl_dist.tasks import Task


@dataclass
class MiniwobSettings(EmulatorPlugin):
    """MiniWoB++ pages in headless Chromium."""

    browser: ClassVar[bool] = True
    name: str = "miniwob"
    task: str | list[str] = "click-test-2"
    """A page by name, several pages as a list or separated by commas, or ``all``."""
    focus_ring: FewOrNone = expert(4)
    """Width in pixels of a ring around the focused element, which shows an agent where it clicked last; 0: the page's
    and browser's own drawing."""

    def build(self) -> Device:
        from digirl_dist.emulator.miniwob import MAX_STEPS, SPEC, MiniwobEmulator

        factory = partial(MiniwobEmulator, self.focus_ring)
        return Device(factory, SPEC, max_steps=MAX_STEPS, extras=("miniwob",), needs=Needs(300, 0.5))

    def default_tasks(self, split: str) -> Sequence[Task]:
        from digirl_dist.emulator.miniwob import miniwob_tasks

        return miniwob_tasks(self.task, split)

    def known_tasks(self, split: str) -> Sequence[Task]:
        from digirl_dist.emulator.miniwob import miniwob_tasks

        return miniwob_tasks("all", split)

    def can_run(self, task: Task, judged_elsewhere: bool) -> bool:
        return False
