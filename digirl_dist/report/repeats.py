"""Messages that repeat themselves: the first is printed, further ones are counted."""

from __future__ import annotations

import re
import threading
from collections.abc import Iterator
from dataclasses import dataclass, field

from digirl_dist.types import Clock, Json

_SOON_S = 2.0
_EVERY_S = 30.0
_MOST = 200
"""Reasons that are told apart."""
_NAMED = 3
_REASONS = ("reason", "doing", "run_path")
_COMPARED = 300
"""Characters of a reason."""


@dataclass
class _Repeated:
    reason: str
    told_at: float
    times: int = 0
    workers: dict[str, None] = field(default_factory=dict)
    wait_s: float = _SOON_S


class Repeats:
    """Knows which reasons were told, up to numbers and the worker's name. Safe to use from any thread."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._told: dict[str, _Repeated] = {}
        self._lock = threading.Lock()

    def is_new(self, kind: str, content: dict[str, Json]) -> bool:
        """Returns whether nothing like it was told before; counts it if there was."""
        worker = str(content.get("worker", ""))
        reason = str(next((content[name] for name in _REASONS if name in content), ""))[:_COMPARED]
        plain = reason.replace(worker, "*") if worker else reason
        key = f"{kind} {content.get('state', '')} {re.sub('[0-9a-f]*[0-9][0-9a-f]*', '#', plain)}"
        with self._lock:
            if len(self._told) >= _MOST and key not in self._told:
                key, reason = "", "other reasons, which events.jsonl has"
            if key not in self._told:
                self._told[key] = _Repeated(f"{kind.replace('_', ' ')}: {reason}", self._clock(), int(not key))
                return bool(key)
            self._told[key].times += 1
            self._told[key].workers[worker] = None
            return False

    def due(self, everything: bool = False) -> Iterator[str]:
        """Yields a line for each reason that came again: soon after the first time, then at most every 30 s."""
        now = self._clock()
        with self._lock:
            found = [
                one for one in self._told.values() if one.times and (everything or now - one.told_at >= one.wait_s)
            ]
            lines = [_line(one) for one in found]
            for one in found:
                one.told_at, one.wait_s, one.times, one.workers = now, _EVERY_S, 0, {}
        yield from lines


def _line(repeated: _Repeated) -> str:
    names = [name for name in repeated.workers if name]
    more = ", …" if len(names) > _NAMED else ""
    who = f", {len(names)} worker{'s' * (len(names) > 1)} ({', '.join(names[:_NAMED])}{more})" if names else ""
    return f"{repeated.times} more like this{who}: {repeated.reason}"
