"""Finds the episodes that break an update.

An episode may pass every check of its values and still break the algorithm or the agent that learns from it. Workers
are suspected before episodes, as one that lies does so in many of them. Both are found by bisection: by what is left
out, since an episode may break an update only together with others. The update goes on without them. One that fails on
any data keeps its own error.
"""

from __future__ import annotations

import itertools
from collections import defaultdict
from collections.abc import Callable, Collection, Sequence
from typing import Generic

from digirl_dist.types import T

_PARTS = 8
_MOST_ATTEMPTS = 128

Attempt = Callable[[Sequence[T]], bool]
"""Makes an update from some episodes, always from the same state; returns whether it went through."""


def sift(
    episodes: Sequence[T], attempt: Attempt[T], worker_of: Callable[[T], str], known: Collection[str] = ()
) -> list[T]:
    """Returns the episodes without which an update goes through; an attempt without them succeeded last.

    An update from all of them has failed. Of a worker that breaks it, either a few episodes are found that do, or all
    are returned. ``known`` are workers to suspect first. Returns nothing if the fault is in no minority of the workers,
    and of the episodes, or is not found in a bounded number of attempts.
    """
    by_worker: dict[str, list[T]] = defaultdict(list)
    for episode in episodes:
        by_worker[worker_of(episode)].append(episode)
    search = _Search(episodes, attempt)
    try:
        units = search.workers([own for name, own in by_worker.items() if name in known], list(by_worker.values()))
        if not units:
            found = search.minority([[episode] for episode in episodes])
            return search.settled([episode for unit in found for episode in unit])
        for place, own in enumerate(units):
            others = [*units[:place], *units[place + 1 :]]
            units[place] = [episode for unit in search.narrowed([[one] for one in own], others) for episode in unit]
        return search.settled([episode for unit in units for episode in unit])
    except _GivenUpError:
        return []


class _GivenUpError(Exception):
    """There were too many attempts."""


class _Search(Generic[T]):
    """Looks for units, lists of episodes, without which an attempt succeeds."""

    def __init__(self, episodes: Sequence[T], attempt: Attempt[T]) -> None:
        self._episodes = episodes
        self._attempt = attempt
        self._attempts = 0
        self._succeeded_last: set[int] | None = None
        """Which episodes were left out of the last attempt, if that succeeded."""

    def workers(self, known: list[list[T]], units: list[list[T]]) -> list[list[T]]:
        """Returns what ``minority`` does, or the ``known`` ones if an attempt without these alone succeeds."""
        if 0 < len(known) < len(units) and self._goes_without(known):
            return known
        return self.minority(units)

    def minority(self, units: list[list[T]]) -> list[list[T]]:
        """Returns few ``units`` without which an attempt succeeds; nothing if that is more than half of them.

        Where each of several parts fails alone, they all do.
        """
        if len(units) < 2:
            return []
        edges = [len(units) * place // min(_PARTS, len(units)) for place in range(min(_PARTS, len(units)) + 1)]
        if not any(self._goes_without(units[:first] + units[last:]) for first, last in itertools.pairwise(edges)):
            return []
        found = self._fewest(units, [])
        return found if 2 * len(found) <= len(units) else []

    def narrowed(self, suspects: list[list[T]], out: list[list[T]]) -> list[list[T]]:
        """Halves ``suspects`` as long as leaving out one half, beside ``out``, is enough."""
        half: list[list[T]] | None = suspects
        while half is not None and len(half) > 1:
            suspects = half
            half = next((each for each in _halves(suspects) if self._goes_without([*out, *each])), None)
        return suspects if half is None else half

    def settled(self, found: list[T]) -> list[T]:
        """Returns ``found`` once the last attempt is one without them that succeeded; nothing if it does not."""
        out = set(map(id, found))
        return found if found and (self._succeeded_last == out or self._goes_without([found])) else []

    def _fewest(self, suspects: list[list[T]], out: list[list[T]]) -> list[list[T]]:
        """Returns few of ``suspects`` to leave out beside ``out``: without all of them, an attempt succeeds.

        With all of them it fails. This is QuickXplain (Junker, AAAI 2004): each one takes twice log2 of their number.
        """
        suspects = self.narrowed(suspects, out)
        if len(suspects) == 1:
            return suspects
        first, second = _halves(suspects)
        found = self._fewest(first, [*out, *second])
        return [*found, *self._fewest(second, [*out, *found])]

    def _goes_without(self, out: list[list[T]]) -> bool:
        """Raises _GivenUpError instead of making one attempt too many."""
        self._attempts += 1
        if self._attempts > _MOST_ATTEMPTS:
            raise _GivenUpError
        gone = {id(episode) for unit in out for episode in unit}
        succeeded = self._attempt([episode for episode in self._episodes if id(episode) not in gone])
        self._succeeded_last = gone if succeeded else None
        return succeeded


def _halves(units: list[list[T]]) -> tuple[list[list[T]], list[list[T]]]:
    middle = len(units) // 2
    return units[:middle], units[middle:]
