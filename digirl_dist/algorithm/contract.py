"""Holds what an algorithm returns against the protocol: an error names its class, its method and what is wrong."""

from __future__ import annotations

from collections import Counter, OrderedDict
from collections.abc import Mapping
from typing import Any, cast

import pyarrow as pa
import torch

from digirl_dist.algorithm import Algorithm, ExpectingAlgorithm
from digirl_dist.algorithm.table import Learned, Row
from digirl_dist.errors import CheckpointError, TrainingError
from digirl_dist.storage import update_table
from digirl_dist.storage.safe_torch_load import is_loaded, require_plain
from digirl_dist.user_code.entry_point import saved_state

_MAPPINGS = (dict, OrderedDict, Counter)
_SEQUENCES = (list, tuple, set)


def state_of(algorithm: Algorithm) -> dict[str, Any]:
    """Returns the algorithm's state. Raises CheckpointError for one that a checkpoint would take and not give back."""
    state: Any = saved_state(algorithm)
    wrong = _unreadable(state, "", set()) if isinstance(state, Mapping) else f"a {_named(type(state))}"
    if wrong:
        raise CheckpointError(
            f"{type(algorithm).__name__}.state_dict returned {wrong}, which no resume could read; return Python's own "
            "numbers, strings, lists and dicts, and tensors (of NumPy: x.item() and torch.from_numpy(x); of other "
            "tensors: x.clone(), x.to_dense(), x.dequantize())"
        )
    return dict(state)


def learned_of(algorithm: Algorithm, returned: Any) -> tuple[dict[str, float], pa.Table | None]:
    """Returns the figures and the table that an update of the algorithm ``returned``, None for no table.

    Raises TrainingError for anything else.
    """
    name = f"{type(algorithm).__name__}.update"
    figures = returned.figures if isinstance(returned, Learned) else returned
    try:
        found = {str(figure): float(value) for figure, value in figures.items()}
    except (AttributeError, TypeError, ValueError) as error:
        raise TrainingError(f"{name} returned {figures!r:.100}, not a dict of numbers by name") from error
    if not isinstance(returned, Learned):
        return found, None
    try:
        return found, update_table.to_table(map(_cells, returned.rows))
    except (AttributeError, TypeError, ValueError, pa.ArrowException) as error:
        raise TrainingError(f"{name} returned a table that is none: {error!s:.200}") from error


def _cells(row: Row) -> update_table.Cells:
    ticket = row.episode.ticket
    place = (ticket.iteration, ticket.index, ticket.task.id, row.place)
    return (*place, row.outcome, row.reason, row.weight, row.advantage, row.value, row.learned)


def expect(algorithm: Algorithm) -> None:
    """Reports to an algorithm that wants to know (see ``ExpectingAlgorithm``) that no ticket is left to run."""
    if hasattr(algorithm, "expect"):
        cast("ExpectingAlgorithm", algorithm).expect((), ())


def _unreadable(value: Any, place: str, known: set[type]) -> str:
    """Returns type and place of the first part that ``storage.safe_torch_load`` would refuse; empty for none.

    ``known`` are types that it does not refuse.
    """
    kind = type(value)  # a numpy.float64 is a float to isinstance
    if kind in _MAPPINGS:
        parts = ((f"{place}[{key!r:.80}]", part) for key, entry in value.items() for part in (key, entry))
    elif kind in _SEQUENCES:
        parts = ((f"{place}[{number}]", part) for number, part in enumerate(value))
    elif refusal := _refusal(value, known):
        return refusal + (f" at {place}" if place else "")
    else:
        return ""
    return next((wrong for where, part in parts if (wrong := _unreadable(part, where, known))), "")


def _refusal(value: Any, known: set[type]) -> str:
    """Returns what a tensor or another single value is if it would be refused; empty if not."""
    if isinstance(value, torch.Tensor):
        try:
            require_plain(value)
        except ValueError:
            return "a tensor that is expanded, sparse, quantized or of no device"
    elif type(value) not in known and not is_loaded(value):
        return f"a {_named(type(value))}"
    known.add(type(value))
    return ""


def _named(kind: type) -> str:
    return f"{kind.__module__}.{kind.__qualname__}"
