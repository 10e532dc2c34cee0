"""Judges: decide whether an episode was a success, in place of the emulator."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol

from digirl_dist.trajectory import Trajectory


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
