"""Holds what an algorithm returns against the protocol: an error names its class, its method and what is wrong."""

from __future__ import annotations

from collections import Counter, OrderedDict
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import torch

from digirl_dist.errors import CheckpointError, TrainingError
from digirl_dist.user_code.state import saved_state

if TYPE_CHECKING:
    from digirl_dist.algorithm import Algorithm

_MAPPINGS = (dict, OrderedDict, Counter)
_SEQUENCES = (list, tuple, set)
_SINGLE = (bool, int, float, complex, str, bytes, bytearray, type(None), torch.dtype, torch.device, torch.Size)


def state_of(algorithm: Algorithm) -> dict[str, Any]:
    """Returns the algorithm's state. Raises CheckpointError for one that a checkpoint would take and not give back."""
    state: Any = saved_state(algorithm)
    wrong = _unreadable(state, "") if isinstance(state, Mapping) else f"a {_named(type(state))}"
    if wrong:
        raise CheckpointError(
            f"{type(algorithm).__name__}.state_dict returned {wrong}, which no resume could read; return Python's own "
            "numbers, strings, lists and dicts, and tensors (of NumPy: x.item() and torch.from_numpy(x))"
        )
    return dict(state)


def figures_of(algorithm: Algorithm, returned: Any) -> dict[str, float]:
    """Returns the figures that an update of the algorithm ``returned``. Raises TrainingError for anything else."""
    try:
        return {str(name): float(figure) for name, figure in returned.items()}
    except (AttributeError, TypeError, ValueError) as error:
        name = f"{type(algorithm).__name__}.update"
        raise TrainingError(f"{name} returned {returned!r:.100}, not a dict of numbers by name") from error


def _unreadable(value: Any, place: str) -> str:
    """Returns type and place of the first part that ``storage.safe_torch_load`` would refuse; empty for none."""
    kind = type(value)  # a numpy.float64 is a float to isinstance
    if kind in _MAPPINGS:
        parts = ((f"{place}[{key!r:.80}]", part) for key, entry in value.items() for part in (key, entry))
    elif kind in _SEQUENCES:
        parts = ((f"{place}[{number}]", part) for number, part in enumerate(value))
    elif kind in _SINGLE or isinstance(value, torch.Tensor):
        return ""
    else:
        return f"a {_named(kind)}" + (f" at {place}" if place else "")
    return next((wrong for where, part in parts if (wrong := _unreadable(part, where))), "")


def _named(kind: type) -> str:
    return f"{kind.__module__}.{kind.__qualname__}"
