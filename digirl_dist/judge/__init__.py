"""The seam for judges other than the emulator: who says whether an episode was a success."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol

from digirl_dist.trajectory import Trajectory


@dataclass(frozen=True)
class Verdict:
    """``said`` is the judge's reason in its own words, if it gave one."""

    success: bool
    said: str = ""


class Judge(Protocol):
    """Judges finished episodes on the host."""

    parallel: int
    """How many verdicts may be asked for at the same time, from as many threads."""

    def verdict(self, trajectory: Trajectory) -> Verdict:
        """May wait, but not without a limit. Raises JudgeError when there is no verdict to be had."""

    def take_figures(self) -> dict[str, float]:
        """What judging has cost since the last call, for the metrics."""

    def close(self) -> None:
        """Stop waiting; verdicts under way raise JudgeError. A second call is harmless."""
