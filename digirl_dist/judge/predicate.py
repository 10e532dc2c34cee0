"""A user's function as the judge."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from digirl_dist.errors import JudgeError
from digirl_dist.judge import Verdict
from digirl_dist.trajectory import Trajectory
from digirl_dist.user_code.blame import RAISED, described


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
