"""The spaces of Gymnasium environments: what agents see of their observations, and how they choose their actions."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np
from gymnasium import spaces
from PIL import Image

from digirl_dist.emulator import BoxActions, DiscreteActions, ProductActions, png
from digirl_dist.errors import EmulatorError, SettingsError
from digirl_dist.trajectory import Observation
from digirl_dist.types import Json

_COLOURS = (1, 3)
_RANGES = ((0.0, 1.0), (-1.0, 1.0), (0.0, 255.0))
"""Bounds by which a Box of floats is known to be an image."""
_LONGEST = 1 << 22
"""Numbers of an observation's vector: a Discrete has one for each of its values."""
_PICTURE = 16
"""Smallest side by which a stack of grey floats is told from numbers."""
_SLACK = 0.1
"""Share of the range by which an image of floats may exceed its bounds, as after interpolation."""
_CORRECT = "correct the environment's observation_space, or the wrapper that changes its values"

Key = tuple[str | int, ...]
"""The way to a part of an observation: keys of a Dict and numbers of a Tuple, one below the other."""
_WHOLE: Key = ("observation",)


class Senses:
    """Of a Dict, only the entries that ``observe`` names are used (none named: all).

    Images are arrays of uint8 with the bounds 0 and 255, or of floats within [0, 1], [-1, 1] or [0, 255], which are
    rounded to 256 levels: [H, W], [H, W, C] or [C, H, W] with C of 1 or 3, and stacks of N of these, along a further
    axis or, for grey ones, as [N, H, W] or [H, W, N]. Several images, also those of a stack, are shown side by side in
    one. (An array [H, W] of floats is a matrix.) Texts are strings of any space. The rest is flattened as
    ``gymnasium.spaces.flatten`` does.
    """

    def __init__(self, space: spaces.Space[Any], observe: Sequence[str], environment: str) -> None:
        """Raises SettingsError naming the environment and the key of a space that is not supported."""
        self._environment = environment
        self._is_nested = isinstance(space, spaces.Dict | spaces.Tuple)
        found = dict(self._chosen(space, observe))
        self._images = {key: part for key, part in found.items() if _is_image(part)}
        self._texts = [key for key, part in found.items() if _is_text(key, part)]
        self._rest = {key: part for key, part in found.items() if key not in self._images and key not in self._texts}
        for key, part in self._rest.items():
            size = spaces.flatdim(part) if _is_flat(part) else -1
            if not 0 <= size <= _LONGEST:
                why = "has no fixed size" if size < 0 else f"would be a vector of {size} numbers"
                raise SettingsError(
                    f"{environment}: {_named(key)} space, {part}, {why} and is not supported; name "
                    "the entries that can be used in emulator.observe"
                )
        self.image_size = self._size() if self._images else None
        self.vector_size = sum(int(spaces.flatdim(part)) for part in self._rest.values())

    def observation(self, raw: Any, instruction: str) -> tuple[Observation, tuple[int, int]]:
        """Returns what the agent sees, and height and width of its image in pixels (zeros if there is none).

        Raises EmulatorError naming the environment and the key of values that are not in their space.
        """
        text = " ".join(str(self._part(raw, key)) for key in self._texts) or instruction
        pixels = self._pixels(raw)
        image = None if pixels is None else png(Image.fromarray(np.ascontiguousarray(pixels)))
        return Observation(text, image, self._vector(raw)), (0, 0) if pixels is None else pixels.shape[:2]

    def _chosen(self, space: Any, observe: Sequence[str]) -> Iterator[tuple[Key, spaces.Space[Any]]]:
        entries = space.spaces if isinstance(space, spaces.Dict) else {}
        if unknown := [name for name in observe if name not in entries]:
            raise SettingsError(
                f"emulator.observe: no entry {unknown[0]!r}; "
                + (f"there are {', '.join(entries)}" if entries else "this environment's has none: leave it out")
            )
        if not isinstance(space, spaces.Dict):
            yield from leaves(space, () if self._is_nested else _WHOLE)
        for name in entries:  # in the order of spaces.flatten
            if not observe or name in observe:
                yield from leaves(entries[name], (name,))

    def _part(self, raw: Any, key: Key) -> Any:
        try:
            for name in key if self._is_nested else ():
                raw = raw[name]
        except (KeyError, IndexError, TypeError) as error:
            raise self._wrong(key, "is missing") from error
        return raw

    def _array(self, raw: Any, key: Key, space: spaces.Space[Any]) -> np.ndarray:
        """One part, of the shape of its space (-1 is any size)."""
        try:
            array = np.asarray(self._part(raw, key))
        except ValueError as error:
            raise self._wrong(key, f"is no array: {error}") from error
        if array.dtype.kind not in "biuf":
            raise self._wrong(key, f"holds {array.dtype} in place of numbers")
        fits = space.shape is None or len(array.shape) == len(space.shape)
        if not fits or any(
            wanted not in (-1, have) for wanted, have in zip(space.shape or (), array.shape, strict=False)
        ):
            raise self._wrong(key, f"has the shape {array.shape} in place of {space.shape}")
        if not np.isfinite(array).all():
            raise self._wrong(key, "holds NaN or infinite values")
        return array

    def _vector(self, raw: Any) -> np.ndarray | None:
        if not self._rest:
            return None
        return np.concatenate([self._flat(raw, key, part) for key, part in self._rest.items()])

    def _flat(self, raw: Any, key: Key, space: spaces.Space[Any]) -> np.ndarray:
        plain = isinstance(space, spaces.Box | spaces.Discrete | spaces.MultiDiscrete | spaces.MultiBinary)
        value = self._array(raw, key, space) if plain else self._part(raw, key)
        if isinstance(space, spaces.Discrete | spaces.MultiDiscrete | spaces.MultiBinary):
            self._refuse_unknown_choice(value, key, space)
        try:
            flat = np.asarray(spaces.flatten(space, value))
        except (IndexError, KeyError, TypeError, ValueError) as error:
            raise self._wrong(key, f"is not in {space}: {error}") from error
        if flat.shape != (spaces.flatdim(space),):
            raise self._wrong(key, f"is not in {space}")
        with np.errstate(over="ignore"):
            numbers = flat.astype(np.float32)
        if not (plain and flat.dtype == np.float32) and not np.isfinite(numbers).all():
            raise self._wrong(key, "has a value beyond float32, in which observations are stored")
        return numbers

    def _refuse_unknown_choice(self, value: np.ndarray, key: Key, space: Any) -> None:
        """Gymnasium's ``flatten`` takes -1 for the last choice, and 0.5 for the first."""
        first = getattr(space, "start", 0)
        count = (
            2
            if isinstance(space, spaces.MultiBinary)
            else space.n
            if isinstance(space, spaces.Discrete)
            else space.nvec
        )
        if not np.all((value >= first) & (value < first + count) & (value == np.rint(value))):
            raise self._wrong(key, f"is {value.tolist()!r:.100}, which is not in {space}")

    def _pixels(self, raw: Any) -> np.ndarray | None:
        shown = [frame for key, space in self._images.items() for frame in _frames(self._bytes(raw, key, space))]
        return None if not shown else shown[0] if len(shown) == 1 else _side_by_side(shown)

    def _bytes(self, raw: Any, key: Key, space: spaces.Space[Any]) -> np.ndarray:
        """An image's values in 256 levels. Raises EmulatorError for values that would become black, white or wrap."""
        array = self._array(raw, key, space)
        if array.dtype == np.uint8 == space.dtype:
            return array
        low, high = _bounds(space) or (0.0, 255.0)
        beyond = _SLACK * (high - low) if np.issubdtype(array.dtype, np.floating) else 0.0
        if array.min() < low - beyond or array.max() > high + beyond:
            raise self._wrong(
                key,
                f"has values from {array.min():g} to {array.max():g}, and its space says {low:g} to {high:g}; "
                f"{_CORRECT}",
            )
        if space.dtype == np.uint8 and not np.array_equal(array, np.rint(array)):
            raise self._wrong(
                key, f"has fractions, and its space says whole numbers from {low:g} to {high:g}; {_CORRECT}"
            )
        levels = np.rint((np.clip(array, low, high) - low) * (255.0 / (high - low)))
        return np.asarray(levels, np.uint8)

    def _size(self) -> tuple[int, int]:
        """Height and width of the picture; -1 where the space leaves them open."""
        if any(min(space.shape or ()) < 1 for space in self._images.values()):
            return (-1, -1)
        empty = [np.zeros(space.shape, np.uint8) for space in self._images.values() if space.shape is not None]
        shapes = [frame.shape for array in empty for frame in _frames(array)]
        return max(shape[0] for shape in shapes), sum(shape[1] for shape in shapes)

    def _wrong(self, key: Key, what: str) -> EmulatorError:
        return EmulatorError(f"{self._environment}: {_named(key)} {what}")


def leaves(space: spaces.Space[Any], key: Key) -> Iterator[tuple[Key, spaces.Space[Any]]]:
    """Yields the parts of a Dict or Tuple, and of those in it, each with the way to it, which begins with ``key``."""
    match space:
        case spaces.Dict():
            for name, part in space.spaces.items():
                yield from leaves(part, (*key, name))
        case spaces.Tuple():
            for number, part in enumerate(space.spaces):
                yield from leaves(part, (*key, number))
        case _:
            yield key, space


def _named(key: Key) -> str:
    return "its observation" if key == _WHOLE else f"{'.'.join(map(str, key))} of its observation"


def _is_flat(space: spaces.Space[Any]) -> bool:
    try:
        return bool(space.is_np_flattenable)
    except NotImplementedError:  # spaces of other packages' own
        return False


def _is_text(key: Key, space: spaces.Space[Any]) -> bool:
    is_string = space.dtype is not None and np.dtype(space.dtype).kind in "US"
    return isinstance(space, spaces.Text) or is_string or (key[-1] in ("mission", "goal") and not _is_flat(space))


def _is_image(space: spaces.Space[Any]) -> bool:
    """By its form and not its class: some packages have boxes of their own, of any height and width (-1)."""
    shape = space.shape
    if not shape or 0 in shape or space.dtype is None or isinstance(space, spaces.MultiBinary | spaces.MultiDiscrete):
        return False
    bounds = _bounds(space)
    if space.dtype == np.uint8:
        is_whole = bounds in (None, (0.0, 255.0))  # a board of 0 and 1 would be black
        return is_whole and (len(shape) in (2, 3) or (len(shape) == 4 and _has_colours(shape[1:])))
    if not (isinstance(space, spaces.Box) and np.issubdtype(space.dtype, np.floating)):
        return False
    is_picture = _has_colours(shape[-3:]) or sorted(shape[-3:])[1] >= _PICTURE if len(shape) in (3, 4) else False
    return bounds in _RANGES and is_picture


def _bounds(space: Any) -> tuple[float, float] | None:
    """Returns the least and the greatest value that a space declares; None if it declares none."""
    low, high = getattr(space, "low", None), getattr(space, "high", None)
    return None if low is None or high is None else (float(np.min(low)), float(np.max(high)))


def _has_colours(shape: tuple[int, ...]) -> bool:
    return shape[2] in _COLOURS or shape[0] in _COLOURS


def _frames(array: np.ndarray) -> list[np.ndarray]:
    """The pictures in an array of bytes, each [H, W] or [H, W, 3]."""
    match array.shape:
        case (_, _) | (_, _, 3):
            return [array]
        case (_, _, 1):
            return [array[:, :, 0]]
        case (3, _, _):
            return [array.transpose(1, 2, 0)]
        case (count, height, width):  # grey ones: the stack is the shorter axis
            return list(array if count <= min(height, width) else array.transpose(2, 0, 1))
    return [frame for each in array for frame in _frames(each)]


def _side_by_side(frames: Sequence[np.ndarray]) -> np.ndarray:
    """One picture of several, in colour if one of them is; the shorter ones end in black."""
    colour = any(frame.ndim == 3 for frame in frames)
    size = max(frame.shape[0] for frame in frames), sum(frame.shape[1] for frame in frames)
    picture = np.zeros((*size, 3) if colour else size, np.uint8)
    left = 0
    for frame in frames:
        height, width = frame.shape[:2]
        picture[:height, left : left + width] = frame[:, :, None] if colour and frame.ndim == 2 else frame
        left += width
    return picture


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
            return np.clip(np.asarray(next(decided), space.dtype).reshape(space.shape), space.low, space.high)
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
