"""Types that all packages share."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable
from typing import Annotated, Any, TypeGuard, TypeVar

from msgspec import Meta

Json = Any
"""A value that ``json`` can write: None, bool, int, float, str, list or dict of these."""

Natural = Annotated[int, Meta(ge=0, le=2**53)]
"""A whole number that every JSON library reads without loss."""

MOST_TOKENS = 1 << 15
"""Of one action."""

TokenIds = Annotated[bytes, Meta(max_length=32 * MOST_TOKENS)]
"""Ids of tokens, of an action or of the prompt before it, as little-endian int32."""

TokenLogProbs = Annotated[bytes, Meta(max_length=4 * MOST_TOKENS)]
"""The natural log of the probability of each token of an action, as little-endian float32."""

Clock = Callable[[], float]
"""Monotonic seconds, such as ``time.monotonic``; a test or a simulation brings its own."""

T = TypeVar("T")
"""Any type: that of all functions and classes to which it does not matter."""


class Closeable(ABC):
    """What ``with`` closes at the end of its block."""

    @abstractmethod
    def close(self) -> None: ...

    def __enter__(self: T) -> T:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


def is_index(value: Json) -> TypeGuard[int]:
    """Returns whether it is a number of an iteration, ticket or attempt: a column of int32 holds it."""
    return type(value) is int and 0 <= value < 2**31


_BEGINNINGS = {b"\x89PNG": "image/png", b"\xff\xd8": "image/jpeg"}


def media_type(image: object) -> str | None:
    """Returns what a screenshot is by its first bytes: image/png or image/jpeg; None for anything else."""
    if not isinstance(image, bytes):
        return None
    return next((kind for start, kind in _BEGINNINGS.items() if image.startswith(start)), None)
