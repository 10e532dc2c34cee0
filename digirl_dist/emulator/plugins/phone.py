"""``emulator=phone``: a small phone drawn in software."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial

from digirl_dist.capacity import Needs
from digirl_dist.emulator.plugins import Device, EmulatorPlugin
from digirl_dist.settings.expert import expert
from digirl_dist.settings.plugins import values
from digirl_dist.settings.ranges import FewOrNone, Share
from digirl_dist.tasks import Task


@dataclass
class PhoneSettings(EmulatorPlugin):
    """The demo phone, drawn with Pillow."""

    name: str = "phone"
    shuffle_icons: bool = False
    """Reorder the icons of the home screen in each episode."""
    updates: FewOrNone = 0
    """Updates that each app offers, one after another, when it is opened. Accepting and declining take two steps
    each, for which there is room in ``max_steps`` unless it is set."""
    endless_updates: Share = expert(0.3)
    """Share of the updates that never end once they are accepted. The screen does not tell which."""

    def build(self) -> Device:
        from digirl_dist.emulator.phone import MAX_STEPS, PHONE_SPEC, DemoPhone

        most = MAX_STEPS + 2 * self.updates
        return Device(partial(DemoPhone, **values(self)), PHONE_SPEC, max_steps=most, needs=Needs(60, 0.25))

    def tasks(self, task_set: str, split: str) -> Sequence[Task]:
        from digirl_dist.emulator.phone import phone_tasks

        return phone_tasks(task_set, split)

    def known_tasks(self, split: str) -> Sequence[Task]:
        return [*self.tasks("all", split), *self.tasks("long", split)]

    def can_run(self, task: Task, judged_elsewhere: bool) -> bool:
        from digirl_dist.emulator.phone.tasks import refuse_unreachable

        if not judged_elsewhere and task.params:
            refuse_unreachable(task.params)
        return judged_elsewhere or bool(task.params)
