"""Keys that work as any other, but that the reference leaves out: few runs have a reason to change them."""

from __future__ import annotations

from copy import deepcopy
from dataclasses import Field, field
from functools import partial
from typing import Any, cast

from digirl_dist.types import T

MISSING: Any = "???"
"""How OmegaConf marks a value that must be given; spelled out so that workers need not import it."""


_MARK = "expert"


def expert(default: T) -> T:
    """Returns the field of a settings class whose key is for experts: ``step_s: Seconds = expert(30.0)``."""
    if isinstance(default, list | dict):
        return cast(T, field(default_factory=partial(deepcopy, default), metadata={_MARK: True}))
    return field(default=default, metadata={_MARK: True})


def is_expert(one: Field[Any]) -> bool:
    return _MARK in one.metadata
