"""Devices for agents that remember: texts tell the latest actions, and what is on the screen by name."""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any, NamedTuple, TypeVar

from digirl_dist.emulator import EmulatorFactory, Label
from digirl_dist.emulator.touch_actions import DeviceAction, without_remarks
from digirl_dist.errors import ActionError, EmulatorError
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


_LABELS, _MEMORIES = "\nOn screen: ", "\nBefore: "
_MOST_LABELS, _LONGEST_NAME = 64, 100
_FINE = 1000
"""Places are told in whole thousandths of the screen."""


_Part = TypeVar("_Part")


@dataclass(frozen=True)
class Memory:
    """An action of this episode.

    ``here``: it was done on the very screen that is seen now. ``on``: the name of what it touched, as far as known.
    """

    action: DeviceAction
    here: bool
    on: str = ""


class Recalled(NamedTuple):
    """The text of an observation, taken apart."""

    instruction: str
    memories: list[Memory]
    """Oldest first."""
    labels: list[Label]


def told(text: str, memories: Sequence[Memory] = (), labels: Sequence[Label] = ()) -> str:
    """Returns the text of an observation with labels and memories, the latter oldest first."""
    named = [[each.name, each.role, *_fine(each)] for each in labels]
    said = [_memory_json(memory) for memory in memories]
    parts = (_LABELS, named), (_MEMORIES, said)
    return text + "".join(mark + json.dumps(part, ensure_ascii=False) for mark, part in parts if part)


def recalled(text: str) -> Recalled:
    """Returns what ``told`` was given. A text without labels and memories is all instruction."""
    rest, memories = _taken(text, _MEMORIES, _memory)
    instruction, labels = _taken(rest, _LABELS, _label)
    return Recalled(instruction, memories, labels)


def _taken(text: str, mark: str, read: Callable[[Any], _Part]) -> tuple[str, list[_Part]]:
    """Returns what stands before the last ``mark`` and what it marks; all and nothing if the text has no such part."""
    before, found, said = text.rpartition(mark)
    if not found:
        return text, []
    try:
        return before, [read(value) for value in json.loads(said)]
    except (ValueError, TypeError, KeyError, AttributeError, ActionError):  # the mark is part of an instruction
        return text, []


def _memory_json(memory: Memory) -> dict[str, Json]:
    touched: dict[str, Json] = {"on": memory.on} if memory.on else {}
    return {**memory.action.to_json(), "here": memory.here, **touched}


def _memory(value: dict[str, Json]) -> Memory:
    here, on = bool(value.pop("here")), str(value.pop("on", ""))
    return Memory(DeviceAction.from_json(value), here, on)


def _label(value: Sequence[Json]) -> Label:
    name, role, *box = value
    left, top, right, bottom = (float(place) / _FINE for place in box)
    return Label(str(name), str(role), left, top, right, bottom)


def _checked(label: Any) -> Label:
    if not isinstance(label, Label) or not all(map(math.isfinite, _box(label))):
        raise EmulatorError(f"labels() returned {label!r:.200}, not a digirl_dist.emulator.Label with a finite box")
    return replace(label, name=label.name[:_LONGEST_NAME])


def _box(label: Label) -> tuple[float, float, float, float]:
    return label.left, label.top, label.right, label.bottom


def _area(label: Label) -> float:
    return (label.right - label.left) * (label.bottom - label.top)


def _touched(action: DeviceAction, labels: Sequence[Label]) -> str:
    """The name of the smallest label at the action's point; empty if there is none."""
    if "x" not in DeviceAction.FIELDS[action.type]:
        return ""
    here = [
        label for label in labels if label.left <= action.x <= label.right and label.top <= action.y <= label.bottom
    ]
    return min(here, key=_area).name if here else ""


def _fine(label: Label) -> list[int]:
    return [round(min(max(place, 0.0), 1.0) * _FINE) for place in _box(label)]


class RememberedEmulator:
    """Fulfils ``Emulator``: another one whose texts tell labels and the latest actions, and which types at a point."""

    def __init__(self, factory: EmulatorFactory, most: int, labels: bool = False) -> None:
        """Tells the latest ``most`` actions and, with ``labels``, what is on the screen if the emulator names it."""
        self._emulator = factory()
        self._most = most
        self._labels: Callable[[], Sequence[Label]] | None = getattr(self._emulator, "labels", None) if labels else None
        self._shown: list[Label] = []
        self._past: list[tuple[DeviceAction, bytes | None, str]] = []
        self._screen: bytes | None = None

    def reset(self, task: Task, seed: int) -> Observation:
        self._past = []
        return self._remembering(self._emulator.reset(task, seed))

    def step(self, action: Json) -> Transition:
        """Raises ActionError for what is no device action."""
        chosen = DeviceAction.from_json(action)
        self._past.append((chosen, self._screen, _touched(chosen, self._shown)))
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
        memories = [Memory(action, before == seen.image, on) for action, before, on in latest]
        self._shown = self._named()
        return replace(seen, text=told(seen.text, memories, self._shown))

    def _named(self) -> list[Label]:
        """Raises EmulatorError for what is no label."""
        found = list(self._labels())[:_MOST_LABELS] if self._labels else []
        return [_checked(label) for label in found]
