"""Emulators: the interface of devices, and the description of their observations and actions."""

from __future__ import annotations

import io
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated, Any, Protocol

import msgspec
import numpy as np

from digirl_dist.emulator.episode_limits import LARGEST_NUMBER
from digirl_dist.emulator.touch_actions import DeviceAction
from digirl_dist.errors import ActionError, SettingsError
from digirl_dist.tasks import Task
from digirl_dist.trajectory import Observation, Transition
from digirl_dist.types import Json, Natural

if TYPE_CHECKING:
    from PIL.Image import Image


class Emulator(Protocol):
    """One device. It lives in its own process, and one thread uses it."""

    def reset(self, task: Task, seed: int) -> Observation:
        """Starts an episode of ``task``. The same task and seed give the same first observation."""

    def step(self, action: Json) -> Transition:
        """Performs one action. Raises ActionError for an action outside its vocabulary."""

    def close(self) -> None:
        """Releases everything; a second call is harmless."""


class OwnEmulator(Emulator, Protocol):
    """What ``emulator=custom`` reads of your class itself, before it makes an emulator."""

    spec: EmulatorSpec

    @staticmethod
    def tasks(task_set: str, split: str) -> Sequence[Task]:
        """Returns the tasks of a set, ``default`` unless ``task_set`` names another; ``split`` is train or test."""


EmulatorFactory = Callable[[], Emulator]


def png(image: Image, compress_level: int = 1) -> bytes:
    """Returns a screenshot as observations have it. Level 1 takes a fifth of the time of the default."""
    buffer = io.BytesIO()
    image.save(buffer, "png", compress_level=compress_level)
    return buffer.getvalue()


@dataclass(frozen=True)
class Label:
    """What a device's own accessibility interface says of something on its screen: its name, its role and its box.

    ``role`` is a word such as button, link or textbox, empty if it has none. The box is in shares of the screen's
    width and height.
    """

    name: str
    role: str
    left: float
    top: float
    right: float
    bottom: float

    @property
    def middle(self) -> tuple[float, float]:
        """Right and down, in shares of the screen."""
        return (self.left + self.right) / 2, (self.top + self.bottom) / 2


class LabelledEmulator(Emulator, Protocol):
    """An emulator that can name what is on its screen; its spec has ``labels``."""

    def labels(self) -> Sequence[Label]:
        """Returns what is on the screen that the latest observation shows."""


class _Described:
    """A part of the description of an emulator."""

    def __post_init__(self) -> None:
        """Turns lists and what is numpy's into tuples and plain numbers. Raises SettingsError naming a wrong field."""
        for name, given in vars(self).items():
            try:
                plain = msgspec.convert(np.asarray(given).tolist(), _KINDS[name], strict=False)
            except (ValueError, msgspec.ValidationError) as error:
                raise SettingsError(f"{type(self).__name__}.{name} cannot be {given!r:.100}: {error}") from error
            object.__setattr__(self, name, plain)


class _Part(_Described):
    """A part of ``ProductActions``."""


_Positive = Annotated[int, msgspec.Meta(ge=1, le=2**53)]
_KINDS: dict[str, Any] = {
    "useful": tuple[str, ...],
    "n": _Positive,
    "low": tuple[float, ...],
    "high": tuple[float, ...],
    "parts": tuple[_Part, ...],
    "actions": _Described,
    "vector_size": Natural,
    "image_size": tuple[int, int] | None,
    "labels": bool,
    "steady": bool,
    "longest": _Positive | None,
}


@dataclass(frozen=True)
class DeviceActions(_Described):
    """Touch-screen actions, see ``emulator/touch_actions.py``."""

    useful: tuple[str, ...] = ("tap", "type", "enter", "back", "home", "done", "swipe")
    """Types of action that are useful on this device; an agent that starts at random chooses from these."""

    def check(self, action: Json) -> None:
        """Raises ActionError for an action outside the space."""
        DeviceAction.from_json(action)


@dataclass(frozen=True)
class DiscreteActions(_Part):
    """An action is an int in [0, n)."""

    n: int

    def check(self, action: Json) -> None:
        """Raises ActionError for an action outside the space."""
        if type(action) is not int or not 0 <= action < self.n:
            raise ActionError(f"{action!r:.200} is not an action: expected an int in [0, {self.n})")


@dataclass(frozen=True)
class BoxActions(_Part):
    """An action is a list of floats, one per bound; the emulator clips them to the bounds."""

    low: tuple[float, ...]
    high: tuple[float, ...]

    def __post_init__(self) -> None:
        """Raises SettingsError also for bounds that are none."""
        super().__post_init__()
        if len(self.low) != len(self.high) or any(low > high for low, high in zip(self.low, self.high, strict=False)):
            raise SettingsError(f"{self!r:.200} must have a high for each low, and none below it")

    def check(self, action: Json) -> None:
        """Raises ActionError for an action outside the space."""
        size = len(self.low)
        if not isinstance(action, list) or len(action) != size or not all(map(_is_number, action)):
            raise ActionError(
                f"{action!r:.200} is not an action: expected a list of {size} numbers within ±{LARGEST_NUMBER:g}"
            )


def _is_number(value: Json) -> bool:
    return type(value) in (int, float) and abs(value) <= LARGEST_NUMBER


@dataclass(frozen=True)
class ProductActions(_Described):
    """An action is a list with one action for each part, in order."""

    parts: tuple[DiscreteActions | BoxActions, ...]

    def check(self, action: Json) -> None:
        """Raises ActionError for an action outside the space."""
        if not isinstance(action, list) or len(action) != len(self.parts):
            raise ActionError(f"{action!r:.200} is not an action: expected a list of {len(self.parts)} actions")
        for part, each in zip(self.parts, action, strict=True):
            part.check(each)


Actions = DeviceActions | DiscreteActions | BoxActions | ProductActions


@dataclass(frozen=True)
class EmulatorSpec(_Described):
    """What an agent must know to fit an emulator.

    ``vector_size`` is the length of ``Observation.vector`` (0: none); ``image_size`` is (height, width) of the
    decoded image or None. ``labels``: the emulator is a ``LabelledEmulator``. ``steady``: equal seeds give equal first
    screens; False where a screen shows a clock or live content, say. ``longest``: the steps by which the emulator
    itself has ended any episode, such as those of a TimeLimit; None: not known. A longer episode is refused.
    """

    actions: Actions
    vector_size: int = 0
    image_size: tuple[int, int] | None = None
    labels: bool = False
    steady: bool = True
    longest: int | None = None

    def described(self) -> str:
        """Describes in words what an agent sees and can do."""
        kind = type(self.actions).__name__.removesuffix("Actions").lower().replace("device", "touch")
        seen = {"screenshots": self.image_size is not None, f"{self.vector_size} numbers": self.vector_size > 0}
        return f"{kind} actions and {' and '.join(name for name in seen if seen[name]) or 'nothing but text'} to see"
