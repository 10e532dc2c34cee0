"""Actions of Gymnasium environments: from their spaces to what agents are told, and back from JSON."""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import Any

import numpy as np
from gymnasium import spaces

from digirl_dist.emulator import BoxActions, DiscreteActions, ProductActions
from digirl_dist.errors import SettingsError
from digirl_dist.types import Json

_MOST_VALUES = 4096
"""Whole numbers of a Box beyond which choosing among them makes no sense."""
_MOST_CHOICES = 1 << 20
"""Of one Discrete; the policy has an output for each."""


class NativeActions:
    """The actions of one environment. A space with several parts is told as ``ProductActions``, Dict and Tuple too."""

    def __init__(self, space: spaces.Space[Any], environment: str) -> None:
        """Raises SettingsError naming the environment and the key of a space that is not supported."""
        self._space = space
        self._parts = tuple(_parts(space, "", environment))
        if not self._parts:
            raise SettingsError(f"{environment}: its action space {space} is empty")
        self.spec = self._parts[0] if len(self._parts) == 1 else ProductActions(self._parts)

    def native(self, action: Json) -> Any:
        """Returns the environment's own form of a JSON action; numbers beyond a Box's bounds are clipped.

        Raises ActionError.
        """
        self.spec.check(action)
        return _native(self._space, iter([action] if len(self._parts) == 1 else action))


def _parts(space: spaces.Space[Any], key: str, environment: str) -> Iterator[DiscreteActions | BoxActions]:
    """Yields what there is to decide, in the order of ``_native``."""
    match space:
        case spaces.Discrete() if space.n <= _MOST_CHOICES:
            yield DiscreteActions(int(space.n))
        case spaces.MultiDiscrete() if space.nvec.max(initial=0) <= _MOST_CHOICES:
            yield from (DiscreteActions(int(n)) for n in space.nvec.ravel())
        case spaces.MultiBinary():
            yield from [DiscreteActions(2)] * math.prod(space.shape)
        case spaces.Box() if np.issubdtype(space.dtype, np.floating):
            yield BoxActions(tuple(space.low.ravel().tolist()), tuple(space.high.ravel().tolist()))
        case spaces.Box() if _values(space).max(initial=0) <= _MOST_VALUES:
            yield from (DiscreteActions(int(n)) for n in _values(space).ravel())
        case spaces.Tuple():
            for number, part in enumerate(space.spaces):
                yield from _parts(part, f"{key}[{number}]", environment)
        case spaces.Dict():
            for name, part in space.spaces.items():
                yield from _parts(part, f"{key}[{name!r}]", environment)
        case _:
            raise SettingsError(
                f"{environment}: its action space{key} {space} is not supported; Discrete, MultiDiscrete, MultiBinary, "
                f"Box, and Tuple and Dict of these are (of up to {_MOST_CHOICES} choices, a Box of integers of "
                f"{_MOST_VALUES}), others with emulator.touch"
            )


def _values(space: spaces.Box) -> np.ndarray:
    """The number of whole numbers within each bound of a Box of integers."""
    return space.high.astype(np.float64) - space.low.astype(np.float64) + 1


def _native(space: spaces.Space[Any], decided: Iterator[Any]) -> Any:
    match space:
        case spaces.Discrete():
            return int(space.start) + next(decided)
        case spaces.MultiDiscrete():
            return _array(space, decided, space.start.astype(np.int64))
        case spaces.Box() if np.issubdtype(space.dtype, np.floating):
            numbers = np.asarray(next(decided), space.dtype).reshape(space.shape)
            return np.clip(numbers, space.low, space.high)
        case spaces.Box():
            return _array(space, decided, space.low.astype(np.int64))
        case spaces.Tuple():
            return tuple(_native(part, decided) for part in space.spaces)
        case spaces.Dict():
            return {name: _native(part, decided) for name, part in space.spaces.items()}
    return _array(space, decided)


def _array(space: spaces.Space[Any], decided: Iterator[Any], first: Any = 0) -> np.ndarray:
    """Returns what is decided of each place, counted from ``first``; the space's type may not count so far."""
    assert space.shape is not None
    numbers = [next(decided) for _ in range(math.prod(space.shape))]
    found: np.ndarray = (np.reshape(numbers, space.shape) + first).astype(space.dtype)
    return found
