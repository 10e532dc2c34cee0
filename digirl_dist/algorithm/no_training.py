"""For agents that cannot learn."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from digirl_dist.errors import TrainingError
from digirl_dist.trajectory import Trajectory


class NoTraining:
    """Fulfils ``Algorithm`` where nothing is learned; it needs no parameters."""

    def update(self, fresh: Sequence[Trajectory], replay: Sequence[Trajectory]) -> dict[str, float]:
        """Raises TrainingError."""
        raise TrainingError("this agent cannot learn; measure it with task_mode=evaluate")

    def state_dict(self) -> dict[str, Any]:
        return {}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Nothing was learned."""
