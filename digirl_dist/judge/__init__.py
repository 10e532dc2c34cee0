"""Judges: decide whether an episode was a success, in place of the emulator."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Protocol

import numpy as np

from digirl_dist.errors import JudgeError
from digirl_dist.trajectory import Trajectory
from digirl_dist.user_code.blame import RAISED, described


@dataclass(frozen=True)
class Verdict:
    """Whether an episode was a success; ``said`` is the judge's reason in its own words, if it gave one."""

    success: bool
    said: str = ""


class Judge(Protocol):
    """Judges finished episodes on the host."""

    parallel: int
    """Largest number of threads that may ask for verdicts at the same time."""

    def verdict(self, trajectory: Trajectory) -> Verdict:
        """Judges an episode within a limited time. Raises JudgeError if there is no verdict."""

    def take_figures(self) -> dict[str, float]:
        """Returns the cost of judging since the last call, for the metrics."""

    def close(self) -> None:
        """Stops waiting; pending verdicts raise JudgeError. Idempotent."""


class PredicateJudge:
    """Implements ``Judge``. ``name`` is the function's name in the settings."""

    parallel = 1

    def __init__(self, predicate: Callable[[Trajectory], object], name: str) -> None:
        self._predicate = predicate
        self._name = name

    def verdict(self, trajectory: Trajectory) -> Verdict:
        place = f"predicate {self._name}, episode {trajectory.episode_id}"
        try:
            success = self._predicate(trajectory)
        except RAISED as error:
            raise JudgeError(f"{place}: {described(error)}") from error
        if not isinstance(success, bool | np.bool_):
            raise JudgeError(f"{place}: it returned {success!r}, which is neither True nor False")
        return Verdict(bool(success))

    def take_figures(self) -> dict[str, float]:
        return {}

    def close(self) -> None:
        """Does nothing: there is nothing to release."""
