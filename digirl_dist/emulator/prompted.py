"""A device for agents that read and write: its texts tell the latest actions, and it takes what they write."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace

from digirl_dist.emulator import EmulatorFactory
from digirl_dist.emulator.touch_actions import DeviceAction
from digirl_dist.errors import ActionError
from digirl_dist.tasks import Task
from digirl_dist.trajectory import Observation, Transition
from digirl_dist.types import Json

_WAIT = DeviceAction("wait").to_json()

Words = Callable[[str, Sequence[DeviceAction]], str]
"""What an observation says, from what the device says and the latest actions, oldest first."""


class PromptedEmulator:
    """Fulfils ``Emulator``: another one in other words.

    A sound action that this device cannot carry out, text that it cannot type say, counts as waiting: a language model
    writes what it likes, and its episode goes on.
    """

    def __init__(self, factory: EmulatorFactory, remembered: int, words: Words) -> None:
        """Tells the latest ``remembered`` actions in ``words``."""
        self._emulator = factory()
        self._remembered = remembered
        self._words = words
        self._actions: list[DeviceAction] = []

    def reset(self, task: Task, seed: int) -> Observation:
        self._actions = []
        return self._told(self._emulator.reset(task, seed))

    def step(self, action: Json) -> Transition:
        """Raises ActionError for what is no device action."""
        chosen = DeviceAction.from_json(action)
        self._actions.append(chosen)
        try:
            answer = self._emulator.step(chosen.to_json())
        except ActionError:
            answer = self._emulator.step(_WAIT)
        return replace(answer, observation=self._told(answer.observation))

    def close(self) -> None:
        self._emulator.close()

    def _told(self, seen: Observation) -> Observation:
        latest = self._actions[-self._remembered :] if self._remembered else []
        return replace(seen, text=self._words(seen.text, latest))
