"""The shuffling generators of an algorithm: ranks with different rows draw differently, so each keeps its own."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch

_GENERATOR = "generator"
"""The name under which every optimiser saves the state of its generator; of a user's algorithm it may be anything."""


def random_states(state: Any, path: str = "") -> dict[str, str]:
    """Returns the generators in an algorithm's state: their path in it, and their state in hexadecimal digits."""
    found: dict[str, str] = {}
    for name, value in state.items() if isinstance(state, Mapping) else ():
        if name == _GENERATOR and isinstance(value, torch.Tensor) and value.dtype == torch.uint8:
            found[path] = bytes(value.tolist()).hex()
        else:
            found |= random_states(value, f"{path}/{name}")
    return found


def with_random_states(state: Any, own: Mapping[str, str], path: str = "") -> Any:
    """Returns an algorithm's state with the generators of ``own`` in place of its own; others stay."""
    if not isinstance(state, Mapping):
        return state
    replaced = {name: with_random_states(value, own, f"{path}/{name}") for name, value in state.items()}
    if _GENERATOR in state and path in own:
        replaced[_GENERATOR] = torch.tensor(list(bytes.fromhex(own[path])), dtype=torch.uint8)
    return replaced
