"""The demo phone: a small deterministic touch-screen device drawn with Pillow, for demos, tests and first runs."""

from __future__ import annotations

from copy import deepcopy

from digirl_dist.emulator import DeviceActions, EmulatorSpec
from digirl_dist.emulator.phone import layout
from digirl_dist.emulator.phone.screen import Screen
from digirl_dist.emulator.phone.state import PhoneState
from digirl_dist.emulator.phone.tasks import (
    MAX_STEPS,
    goal_reached,
    goals_met,
    make_unreached,
    parts_done,
    parts_of,
    phone_tasks,
    solution,
)
from digirl_dist.emulator.touch_actions import DeviceAction
from digirl_dist.errors import EmulatorError
from digirl_dist.tasks import Task
from digirl_dist.trajectory import Observation, Transition
from digirl_dist.types import Json

__all__ = ["MAX_STEPS", "PHONE_SPEC", "DemoPhone", "phone_tasks"]

PHONE_SPEC = EmulatorSpec(
    DeviceActions(("tap", "type", "enter", "back", "swipe")), image_size=(layout.HEIGHT, layout.WIDTH)
)

_MOST_DRAWN = 32


class DemoPhone:
    """Fulfils ``Emulator``.

    ``Observation.text`` is the task's instruction, ``image`` the screen as PNG. The reward is 1.0 at the step that
    reaches the goal, which ends the episode as a success, or in equal shares at the steps that first do one more of its
    parts; ``done`` and ``impossible`` end it as a failure. A task and a seed determine everything; the seed chooses the
    time, the wallpaper, the switches and, if set, the order of icons.
    """

    def __init__(self, shuffle_icons: bool, updates: int, endless_updates: float) -> None:
        """``updates``: how many each app offers; ``endless_updates``: the share of them that never end."""
        self._fresh = (shuffle_icons, updates, endless_updates)
        self._screen = Screen()
        self._task: Task | None = None
        self._drawn: list[tuple[PhoneState, bytes]] = []
        """The newest screens of this episode: most touches change nothing, or lead back."""

    def reset(self, task: Task, seed: int) -> Observation:
        self._task = task
        self._state = PhoneState.fresh(seed, *self._fresh)
        make_unreached(task.params, self._state)
        self._start = deepcopy(self._state)
        self._parts = 0
        self._drawn.clear()
        return self._observation(task)

    def step(self, action: Json) -> Transition:
        """Raises ActionError for what is no device action, EmulatorError before the first reset."""
        if self._task is None:
            raise EmulatorError("the demo phone was not given a task; call reset first")
        wanted = DeviceAction.from_json(action)
        before = goals_met(self._state, self._start)
        self._state.perform(wanted)
        achieved = [goal for goal in goals_met(self._state, self._start) if goal not in before]
        success = not wanted.ends and goal_reached(self._task.params, self._state)
        terminated = success or wanted.ends
        seen = self._observation(self._task)
        return Transition(seen, self._earned(success), terminated, success=success, achieved=achieved)

    def oracle(self) -> Json:
        """Returns the next action of somebody who knows the phone. Raises EmulatorError before the first reset."""
        if self._task is None:
            raise EmulatorError("the demo phone was not given a task; call reset first")
        return solution(self._task.params, self._state).to_json()

    def _earned(self, success: bool) -> float:
        assert self._task is not None
        parts = len(parts_of(self._task.params))
        if not parts:
            return float(success)
        before, self._parts = self._parts, max(self._parts, parts_done(self._task.params, self._state))
        return (self._parts - before) / parts

    def close(self) -> None:
        """A drawing holds nothing that must be released."""

    def _observation(self, task: Task) -> Observation:
        image = next((image for state, image in self._drawn if state == self._state), None)
        if image is None:
            image = self._screen.draw(self._state)
            self._drawn = [*self._drawn[1 - _MOST_DRAWN :], (deepcopy(self._state), image)]
        return Observation(text=task.instruction, image=image)
