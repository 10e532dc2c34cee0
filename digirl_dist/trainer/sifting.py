"""Finds the episodes that break an update: ``python -m digirl_dist.trainer.sifting FOLDER`` does so in a process alone.

An episode may pass every check of its values and still break the algorithm or the agent that learns from it. It is
found by bisection, and the update goes on without it. An update that fails on any data keeps its own error.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Sequence
from typing import TypeVar

T = TypeVar("T")
_MOST = 8
_MOST_SHARE = 0.1

Attempt = Callable[[Sequence[T]], Exception | None]
"""Makes an update from some episodes, always from the same state; returns what it raised."""


def sift(episodes: Sequence[T], attempt: Attempt[T], error: Exception) -> list[tuple[T, Exception]]:
    """Returns the episodes that break an update, each with what it raised; an attempt without them succeeded last.

    ``error`` is what an update from all of them raised. Raises it if they are more than a tenth (or 8), or if the one
    that was found breaks nothing by itself: then the fault is not in single episodes.
    """
    kept = list(episodes)
    found: list[tuple[T, Exception]] = []
    failure: Exception | None = error
    while failure is not None:
        if len(found) >= max(1, min(_MOST, int(_MOST_SHARE * len(episodes)))) or len(kept) < 2:
            raise error
        place, reason = _first_failing(kept, attempt, failure)
        suspect = kept.pop(place)
        found.append((suspect, reason))
        failure = attempt(kept)
        if failure is not None and attempt([suspect]) is None:
            raise error
    return found


def _first_failing(episodes: Sequence[T], attempt: Attempt[T], failure: Exception) -> tuple[int, Exception]:
    """Returns the index of the episode that ends the shortest failing beginning, and what that raised."""
    succeeds, fails = 0, len(episodes)
    while fails - succeeds > 1:
        middle = (succeeds + fails) // 2
        raised = attempt(episodes[:middle])
        if raised is None:
            succeeds = middle
        else:
            fails, failure = middle, raised
    return fails - 1, failure


def main(folder: str) -> None:
    """Sifts the newest checkpoint's update, as a group of ranks would make it, in this process alone."""
    from pathlib import Path

    from digirl_dist.storage.trajectory_store import Store
    from digirl_dist.trainer.rank_process import RankFolder, TrainerSpec
    from digirl_dist.user_code.packing import unpack_file

    trainer_spec: TrainerSpec = unpack_file(RankFolder(Path(folder)).trainer_spec)
    trainer = trainer_spec.alone(None)
    trainer.learn(trainer.resume(), Store(trainer_spec.trajectories))


if __name__ == "__main__":
    main(sys.argv[1])
