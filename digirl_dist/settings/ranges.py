"""The ranges of numbers: each numeric key has one in its type; ``refuse_out_of_range`` holds values against them."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Annotated, Any, get_args, get_origin

from msgspec import Meta

from digirl_dist.errors import SettingsError
from digirl_dist.settings.keys import keys_of

Seconds = Annotated[float, Meta(gt=0, le=1e8)]
"""A limit of time; three years are as good as none."""
Pause = Annotated[float, Meta(ge=0, le=1e8)]
"""A time that may be none."""
Silence = Annotated[float, Meta(ge=6, le=1e8)]
"""A silence of host or worker, each of which speaks every 2 or 3 s."""
Share = Annotated[float, Meta(ge=0, le=1)]
SomeShare = Annotated[float, Meta(gt=0, le=1)]
Amount = Annotated[float, Meta(ge=0, le=1e9)]
Positive = Annotated[float, Meta(gt=0, le=1e9)]
Real = Annotated[float, Meta(ge=-1e30, le=1e30)]
Rate = Annotated[float, Meta(gt=0, le=100)]
"""A learning rate."""
Count = Annotated[int, Meta(ge=1, le=10**9)]
CountOrNone = Annotated[int, Meta(ge=0, le=10**9)]
Sigma = Annotated[float, Meta(ge=0, le=10)]
"""Standard deviation of a logarithm."""
Steps = Annotated[float, Meta(gt=0, le=1e6)]
Few = Annotated[int, Meta(ge=1, le=65_536)]
"""A number of things that all take memory at once: units, channels, processes, rows."""
FewOrNone = Annotated[int, Meta(ge=0, le=65_536)]
Processes = Annotated[int, Meta(ge=1, le=1024)]
"""A number of processes, threads or servers."""
Episodes = Annotated[int, Meta(ge=1, le=10**6)]
"""Of one iteration, whose tickets are all in memory."""
Width = Annotated[int, Meta(ge=1, le=16_384)]
"""Units or channels of a network."""
Pixels = Annotated[int, Meta(ge=8, le=4096)]
"""The short side of a picture for a network that halves it several times."""
Port = Annotated[int, Meta(ge=1, le=65_535)]
Seed = Annotated[int, Meta(ge=0, le=2**53)]
Quality = Annotated[int, Meta(ge=1, le=100)]
ImageSize = Annotated[list[Few], Meta(min_length=2, max_length=2)]
"""Height and width."""
NoOrImageSize = Annotated[list[Few], Meta(max_length=2)]


def refuse_out_of_range(settings: Any, prefix: str = "") -> None:
    """Raises SettingsError naming the first key of ``settings``, a dataclass, whose number is out of its range."""
    for key in keys_of(settings, prefix):
        for name, bounds, value in _numbers(key.name, key.hint, key.value):
            if not _is_within(value, bounds):
                raise SettingsError(f"{name}={shown(value)} is out of range: set it to {described(bounds)}")


def bounds_of(hint: Any) -> list[Any]:
    """Returns the numbers with ranges in a type."""
    if get_origin(hint) is Annotated and get_args(hint)[0] in (int, float):
        return [hint]
    return [found for each in get_args(hint) for found in bounds_of(each)]


def described(bounds: Any) -> str:
    """Returns a range in words; ``bounds`` is a type with a ``Meta``."""
    base, meta = get_args(bounds)[0], _meta(bounds)
    if base not in (int, float):
        return f"a list of {meta.min_length or f'at most {meta.max_length}'}"
    what = "a whole number" if base is int else "a number"
    if meta.ge is not None:
        return f"{what} from {_short(meta.ge)} to {_short(meta.le)}"
    return f"{what} above {_short(meta.gt)}, and at most {_short(meta.le)}"


def _numbers(name: str, hint: Any, value: Any) -> Iterator[tuple[str, Any, Any]]:
    """Yields name, range and value of each number, and of each list with a length, in the value of one key."""
    if get_origin(hint) is Annotated and any(isinstance(each, Meta) for each in get_args(hint)):
        yield name, hint, value
        hint = get_args(hint)[0]
    if isinstance(value, list):
        for place, each in enumerate(value):
            yield from _numbers(f"{name}[{place}]", (*get_args(hint), Any)[0], each)
    elif isinstance(value, Mapping):
        for key, each in value.items():
            yield from _numbers(f"{name}.{key}", (*get_args(hint), Any, Any)[1], each)
    elif value is not None and not isinstance(value, str):
        for each in get_args(hint):
            yield from _numbers(name, each, value)


def _is_within(value: Any, bounds: Any) -> bool:
    meta = _meta(bounds)
    if get_args(bounds)[0] not in (int, float):
        return isinstance(value, list) and (meta.min_length or 0) <= len(value) <= meta.max_length  # type: ignore[operator]
    if isinstance(value, bool) or not isinstance(value, int | float):
        return False
    above = value > meta.gt if meta.gt is not None else value >= meta.ge  # type: ignore[operator]
    return above and value <= meta.le  # type: ignore[operator]  # nothing is true of nan


def shown(value: Any) -> str:
    """Returns a value as a message shows it, cut if it is very long."""
    text = repr(value)
    return text if len(text) <= 80 else f"{text[:60]}…"


def _short(number: Any) -> str:
    return f"{int(number):,}" if abs(number) < 10**16 and number == int(number) else f"{number:g}"


def _meta(bounds: Any) -> Meta:
    return next(each for each in get_args(bounds) if isinstance(each, Meta))
