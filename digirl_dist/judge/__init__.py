"""Judges: decide whether an episode was a success, in place of the emulator."""

from __future__ import annotations

import traceback
from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import partial
from numbers import Real
from typing import Protocol

import numpy as np

from digirl_dist.errors import DigirlDistError, JudgeError
from digirl_dist.storage.events import Events
from digirl_dist.threads import Threads
from digirl_dist.trajectory import Trajectory, float32
from digirl_dist.user_code.blame import RAISED, described


@dataclass(frozen=True)
class Verdict:
    """How far an episode reached its goal, from 0 to 1; ``said`` is the judge's reason in its words, if it gave one."""

    score: float
    said: str = ""

    @property
    def success(self) -> bool:
        """Whether the goal was reached in full."""
        return self.score >= 1


def with_verdict(trajectory: Trajectory, score: float) -> Trajectory:
    """Returns the episode with the judge's rewards: the score in its last step, else 0."""
    last = len(trajectory.steps) - 1
    steps = [replace(step, reward=float32(score) if n == last else 0.0) for n, step in enumerate(trajectory.steps)]
    return replace(trajectory, steps=steps, success=score >= 1)


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
            score = self._predicate(trajectory)
        except RAISED as error:
            raise JudgeError(f"{place}: {described(error)}") from error
        if not isinstance(score, Real | np.bool_) or not 0 <= float(score) <= 1:
            raise JudgeError(
                f"{place}: it returned {score!r:.200}, which is neither True nor False nor a number from 0 to 1"
            )
        return Verdict(float(score))

    def take_figures(self) -> dict[str, float]:
        return {}

    def close(self) -> None:
        """Does nothing: there is nothing to release."""


Tell = Callable[[Trajectory | DigirlDistError], object]


class Judges:
    """Threads in which a judge decides on episodes while others still run."""

    def __init__(self, judge: Judge, events: Events) -> None:
        self._judge = judge
        self._events = events
        self._threads = Threads(judge.parallel, "judge")

    def consider(self, trajectory: Trajectory, tell: Tell) -> None:
        """Calls ``tell``, from another thread, with the episode and its verdict, or with why it has none."""
        self._threads.do(partial(self._decide, trajectory, tell))

    def figures(self, waited_s: float) -> dict[str, float]:
        """Returns the cost of judging since the last call, and how long the last verdicts were waited for."""
        return {**self._judge.take_figures(), "judge_wait_s": round(waited_s, 4)}

    def close(self) -> None:
        self._threads.close()
        self._judge.close()

    def _decide(self, trajectory: Trajectory, tell: Tell) -> None:
        try:
            verdict = self._judge.verdict(trajectory)
        except DigirlDistError as error:
            tell(error)
        except BaseException:  # a fault of ours must not end this thread without a word
            tell(JudgeError(f"internal error: {traceback.format_exc()}"))
        else:
            place = trajectory.ticket.key.place()
            grade = {"success": verdict.success, "score": verdict.score}
            self._events.emit("judged", **place, **grade, said=verdict.said[:500])
            tell(with_verdict(trajectory, verdict.score))
