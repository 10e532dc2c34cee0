"""Recognises a fault of the user's code: the same error, raised at the same line, for several tickets."""

from __future__ import annotations

import builtins
import pickle
import re
from collections.abc import Collection
from dataclasses import dataclass, field

from digirl_dist.tasks import Key

_RAISED = re.compile(r"\b(\w+Error): .*\((at .+:\d+ in \w+)\)", re.DOTALL)
"""An error as ``user_code.blame.described`` writes it: its class, and the line that raised it."""
_KINDS = (
    *(ArithmeticError, AssertionError, AttributeError, ImportError, LookupError, NameError, NotImplementedError),
    *(TypeError, ValueError, pickle.PicklingError),
)
"""Errors in code, which a retry does not repair; other errors may come from a machine, a server or a network."""
_ENOUGH = 4
_MOST = 100
"""Places that are told apart, and tickets of each."""


@dataclass
class _Place:
    reason: str
    keys: set[Key] = field(default_factory=set)
    workers: set[str] = field(default_factory=set)
    failures: int = 0
    is_told: bool = False


class EqualFaults:
    """Counts failures by the line of code that raised them."""

    def __init__(self) -> None:
        self._places: dict[tuple[str, str], _Place] = {}
        self._has_landed = False
        self.everywhere = ""
        """The fault that every episode meets, on every worker, while none has landed; empty if there is none."""

    def landed(self) -> None:
        """Notes an episode: no fault of the code is met by all."""
        self._has_landed, self.everywhere = True, ""

    def failed(self, worker: str, key: Key, reason: str, able: Collection[str]) -> None:
        """Notes why a ticket failed on a worker; ``able`` are the workers that may be given tickets."""
        raised = _RAISED.search(reason)
        kind = getattr(builtins, raised[1], getattr(pickle, raised[1], None)) if raised else None
        if (
            raised is None
            or not (isinstance(kind, type) and issubclass(kind, _KINDS))
            or (len(self._places) >= _MOST and (raised[1], raised[2]) not in self._places)
        ):
            return
        place = self._places.setdefault((raised[1], raised[2]), _Place(reason))
        if len(place.keys) < _MOST:
            place.keys.add(key)
        place.workers.add(worker)
        place.failures += 1
        if not self._has_landed and place.failures >= _ENOUGH and place.workers.issuperset(able):
            self.everywhere = _described(place)

    def news(self) -> str:
        """Returns, once for each fault, that a second ticket met it; empty if there is no news."""
        found = next((each for each in self._places.values() if len(each.keys) > 1 and not each.is_told), None)
        if found is None:
            return ""
        found.is_told = True
        return _described(found)


def _described(place: _Place) -> str:
    tickets, workers = f"{len(place.keys)} tickets", ", ".join(sorted(place.workers)[:3])
    return f"{tickets} failed alike on {workers}, so the fault is in the code and not in a machine: {place.reason}"
