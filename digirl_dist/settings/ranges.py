"""The ranges of numbers: each numeric key has one in its type, to which ``conversion`` holds its value."""

from __future__ import annotations

from enum import Enum
from types import NoneType, UnionType
from typing import Annotated, Any, Union, get_args, get_origin

from msgspec import Meta

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
GroupSize = Annotated[int, Meta(ge=2, le=65_536)]
"""One episode alone is compared with nothing."""
Episodes = Annotated[int, Meta(ge=1, le=10**6)]
"""Of one iteration, whose tickets are all in memory."""
Width = Annotated[int, Meta(ge=1, le=16_384)]
"""Units or channels of a network."""
Pixels = Annotated[int, Meta(ge=8, le=4096)]
"""The short side of a picture for a network that halves it several times."""
Screenshots = Annotated[int, Meta(ge=1, le=9)]
"""Of one prompt: ``trajectory.MOST_EARLIER`` and the present one."""
Port = Annotated[int, Meta(ge=1, le=65_535)]
Quality = Annotated[int, Meta(ge=1, le=100)]
ImageSize = Annotated[list[Few], Meta(min_length=2, max_length=2)]
"""Height and width."""
NoOrImageSize = Annotated[list[Few], Meta(max_length=2)]

_WORDS: dict[Any, str] = {
    bool: "true or false",
    int: "a whole number",
    str: "a text",
    NoneType: "null",
    Any: "anything",
    list: "a list",
    dict: "a mapping",
}


def in_words(hint: Any) -> str:
    """Returns what a type takes: ``a whole number from 1 to 9 or null``, ``true or false``, names of choices."""
    inner = get_args(hint)
    if get_origin(hint) in (Union, UnionType):
        return " or ".join(map(in_words, inner))
    if get_origin(hint) is Annotated:
        return "a path" if inner[0] is str else _described(inner[0], inner[1])
    if isinstance(hint, type) and issubclass(hint, Enum):
        return f"one of {', '.join(hint.__members__)}"
    return _WORDS.get(get_origin(hint) or hint, "given by its keys")


def _described(base: Any, meta: Meta) -> str:
    if get_origin(base) is list:
        return f"a list of {'' if meta.min_length else 'at most '}{meta.max_length}"
    what = "a whole number" if base is int else "a number"
    if meta.ge is not None:
        return f"{what} from {_short(meta.ge)} to {_short(meta.le)}"
    return f"{what} above {_short(meta.gt)}, and at most {_short(meta.le)}"


def shown(value: Any) -> str:
    """Returns a value as a message shows it, cut if it is very long."""
    text = repr(value)
    return text if len(text) <= 80 else f"{text[:60]}…"


def _short(number: Any) -> str:
    return f"{int(number):,}" if abs(number) < 10**16 and number == int(number) else f"{number:g}"
