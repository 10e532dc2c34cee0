"""A device for an agent that remembers: its texts end with the latest actions, and it types at a point."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass, replace

from digirl_dist.emulator import EmulatorFactory
from digirl_dist.emulator.touch_actions import DeviceAction, without_remarks
from digirl_dist.errors import ActionError
from digirl_dist.tasks import Task
from digirl_dist.trajectory import Observation, Transition
from digirl_dist.types import Json

_MARK = "\nBefore: "


@dataclass(frozen=True)
class Memory:
    """An action of this episode. ``here``: it was done on the very screen that is seen now."""

    action: DeviceAction
    here: bool


def told(text: str, memories: Sequence[Memory]) -> str:
    """The text of an observation with memories, oldest first."""
    said = [{**memory.action.to_json(), "here": memory.here} for memory in memories]
    return text + _MARK + json.dumps(said) if said else text


def recalled(text: str) -> tuple[str, list[Memory]]:
    """The inverse of ``told``. A text without memories is all instruction."""
    instruction, mark, said = text.rpartition(_MARK)
    if not mark:
        return text, []
    try:
        return instruction, [_memory(value) for value in json.loads(said)]
    except (ValueError, TypeError, KeyError, AttributeError, ActionError):  # the mark is part of an instruction
        return text, []


def _memory(value: dict[str, Json]) -> Memory:
    here = bool(value.pop("here"))
    return Memory(DeviceAction.from_json(value), here)


class RememberedEmulator:
    """Fulfils ``Emulator``: another one whose texts tell the latest actions, and which can type at a point."""

    def __init__(self, factory: EmulatorFactory, most: int) -> None:
        """Tells the latest ``most`` actions."""
        self._emulator = factory()
        self._most = most
        self._past: list[tuple[DeviceAction, bytes | None]] = []
        self._screen: bytes | None = None

    def reset(self, task: Task, seed: int) -> Observation:
        self._past = []
        return self._remembering(self._emulator.reset(task, seed))

    def step(self, action: Json) -> Transition:
        """Raises ActionError for what is no device action."""
        chosen = DeviceAction.from_json(action)
        self._past.append((chosen, self._screen))
        answer = self._carry_out(chosen, without_remarks(action))
        return replace(answer, observation=self._remembering(answer.observation))

    def close(self) -> None:
        self._emulator.close()

    def _carry_out(self, action: DeviceAction, plain: Json) -> Transition:
        if action.type != "type_at":
            return self._emulator.step(plain)
        first = self._emulator.step(DeviceAction("tap", action.x, action.y).to_json())
        if first.ended:
            return first
        then = self._emulator.step(DeviceAction("type", text=action.text).to_json())
        return replace(then, reward=first.reward + then.reward, achieved=[*first.achieved, *then.achieved])

    def _remembering(self, seen: Observation) -> Observation:
        self._screen = seen.image
        latest = self._past[-self._most :] if self._most else []
        return replace(seen, text=told(seen.text, [Memory(action, before == seen.image) for action, before in latest]))
