"""Devices for agents that remember: texts tell the latest actions, and what is on the screen by name."""

from __future__ import annotations

import json
import math
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from numbers import Real
from typing import Any, NamedTuple

from digirl_dist.emulator import EmulatorFactory, Label
from digirl_dist.emulator.touch_actions import SAID, UNREAD, DeviceAction
from digirl_dist.errors import ActionError, EmulatorError
from digirl_dist.tasks import Task
from digirl_dist.trajectory import Observation, Transition
from digirl_dist.types import Json, T

_WAIT = DeviceAction("wait").to_json()


@dataclass(frozen=True)
class Past:
    """An action of this episode, and what the agent said of it, if it is one that writes."""

    action: DeviceAction
    said: str = ""
    unread: bool = False
    """Whether no action could be read in what it said."""


Words = Callable[[str, Sequence[Past]], str]
"""What an observation says, from what the device says and the latest actions, oldest first."""


_LABELS, _MEMORIES = "\nOn screen: ", "\nBefore: "
_MOST_LABELS, _LONGEST_NAME, _LONGEST_END = 64, 150, 50
"""Of a longer name the beginning and the end are told."""
_FINE = 1000
"""Places are told in whole thousandths of the screen."""


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
    named = [
        [each.name, each.role, *(round(min(max(place, 0.0), 1.0) * _FINE) for place in _box(each))] for each in labels
    ]
    parts = (_LABELS, named), (_MEMORIES, [_memory_json(memory) for memory in memories])
    return text + "".join(mark + json.dumps(part, ensure_ascii=False) for mark, part in parts if part)


def recalled(text: str) -> Recalled:
    """Returns what ``told`` was given. A text without labels and memories is all instruction."""
    rest, memories = _taken(text, _MEMORIES, _memory)
    instruction, labels = _taken(rest, _LABELS, _label)
    return Recalled(instruction, memories, labels)


def _taken(text: str, mark: str, read: Callable[[Any], T]) -> tuple[str, list[T]]:
    """Returns what stands before the last ``mark`` and what it marks; all and nothing if the text has no such part."""
    before, found, said = text.rpartition(mark)
    if not found:
        return text, []
    try:
        return before, [read(value) for value in json.loads(said)]
    except (ValueError, TypeError, KeyError, AttributeError, ActionError):  # the mark is part of an instruction
        return text, []


def _memory_json(memory: Memory) -> dict[str, Json]:
    named: dict[str, Json] = {"on": memory.on} if memory.on else {}
    return {**memory.action.to_json(), "here": memory.here, **named}


def _memory(value: dict[str, Json]) -> Memory:
    here, on = bool(value.pop("here")), str(value.pop("on", ""))
    return Memory(DeviceAction.from_json(value), here, on)


def _label(value: Sequence[Json]) -> Label:
    name, role, *box = value
    left, top, right, bottom = (float(place) / _FINE for place in box)
    return Label(str(name), str(role), left, top, right, bottom)


def _checked(label: Any) -> Label:
    if not (
        isinstance(label, Label)
        and isinstance(label.name, str)
        and isinstance(label.role, str)
        and all(isinstance(each, Real) and math.isfinite(each) for each in _box(label))
    ):
        raise EmulatorError(
            f"labels() returned {label!r:.200}, not a digirl_dist.emulator.Label with texts and a finite box"
        )
    if len(label.name) <= _LONGEST_NAME:
        return label
    return replace(label, name=f"{label.name[: _LONGEST_NAME - _LONGEST_END]} … {label.name[-_LONGEST_END:]}")


def _box(label: Label) -> tuple[float, float, float, float]:
    return label.left, label.top, label.right, label.bottom


def touched(action: DeviceAction, labels: Sequence[Label]) -> Label | None:
    """Returns the smallest label at the action's point; None if there is none."""
    if "x" not in DeviceAction.FIELDS[action.type]:
        return None
    here = [one for one in labels if one.left <= action.x <= one.right and one.top <= action.y <= one.bottom]
    return min(here, key=lambda one: (one.right - one.left) * (one.bottom - one.top), default=None)


class _Wrapped:
    """A device behind an agent's wrapper: typing at a point is a tap and typing, and labels are checked.

    ``is_lenient``: a sound action that this device cannot carry out, text that it cannot type say, counts as waiting.
    """

    def __init__(self, factory: EmulatorFactory, labels: bool, is_lenient: bool) -> None:
        self._emulator = factory()
        self._labels: Callable[[], Sequence[Label]] | None = getattr(self._emulator, "labels", None) if labels else None
        self._is_lenient = is_lenient

    def close(self) -> None:
        self._emulator.close()

    def _carry_out(self, action: DeviceAction) -> Transition:
        first, *parts = action.parts
        answer = self._do(first)
        for part in parts:
            if not answer.ended:
                then = self._do(part)
                both = [*answer.achieved, *then.achieved]
                answer = replace(then, reward=answer.reward + then.reward, achieved=both)
        return answer

    def _do(self, action: DeviceAction) -> Transition:
        try:
            return self._emulator.step(action.to_json())
        except ActionError:
            if not self._is_lenient:
                raise
            return self._emulator.step(_WAIT)

    def _named(self) -> list[Label]:
        """Raises EmulatorError for what is no label."""
        found = list(self._labels())[:_MOST_LABELS] if self._labels else []
        return [_checked(label) for label in found]


class PromptedEmulator(_Wrapped):
    """Fulfils ``Emulator``: another one whose texts are prompts.

    A language model writes what it likes, and its episode goes on.
    """

    def __init__(
        self, factory: EmulatorFactory, remembered: int, words: Words, labels: bool = False, earlier: int = 0
    ) -> None:
        """Tells the latest ``remembered`` actions in ``words`` and, with ``labels``, what is on the screen.

        Shows the latest ``earlier`` screenshots before the present one.
        """
        super().__init__(factory, labels, is_lenient=True)
        self._screens: deque[bytes] = deque(maxlen=earlier + 1)
        self._remembered = remembered
        self._words = words
        self._past: list[Past] = []

    def reset(self, task: Task, seed: int) -> Observation:
        self._past = []
        self._screens.clear()
        return self._prompting(self._emulator.reset(task, seed))

    def step(self, action: Json) -> Transition:
        """Raises ActionError for what is no device action."""
        chosen, remarks = DeviceAction.from_json(action), action if isinstance(action, dict) else {}
        self._past.append(Past(chosen, str(remarks.get(SAID, "")), UNREAD in remarks))
        answer = self._carry_out(chosen)
        return replace(answer, observation=self._prompting(answer.observation))

    def _prompting(self, seen: Observation) -> Observation:
        latest = self._past[-self._remembered :] if self._remembered else []
        text = told(self._words(seen.text, latest), (), self._named())
        if seen.image is None:
            return replace(seen, text=text)
        self._screens.append(seen.image)
        return replace(seen, text=text, earlier=tuple(self._screens)[:-1])


class RememberedEmulator(_Wrapped):
    """Fulfils ``Emulator``: another one whose texts tell labels and the latest actions."""

    def __init__(self, factory: EmulatorFactory, most: int, labels: bool = False) -> None:
        """Tells the latest ``most`` actions and, with ``labels``, what is on the screen if the emulator names it."""
        super().__init__(factory, labels, is_lenient=False)
        self._most = most
        self._shown: list[Label] = []
        self._past: list[tuple[DeviceAction, bytes | None, str]] = []
        self._screen: bytes | None = None

    def reset(self, task: Task, seed: int) -> Observation:
        self._past = []
        return self._remembering(self._emulator.reset(task, seed))

    def step(self, action: Json) -> Transition:
        """Raises ActionError for what is no device action."""
        chosen = DeviceAction.from_json(action)
        on = touched(chosen, self._shown)
        self._past.append((chosen, self._screen, on.name if on else ""))
        answer = self._carry_out(chosen)
        return replace(answer, observation=self._remembering(answer.observation))

    def _remembering(self, seen: Observation) -> Observation:
        self._screen = seen.image
        latest = self._past[-self._most :] if self._most else []
        memories = [Memory(action, before == seen.image, on) for action, before, on in latest]
        self._shown = self._named()
        return replace(seen, text=told(seen.text, memories, self._shown))
