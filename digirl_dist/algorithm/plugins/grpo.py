"""``train_algorithm=grpo``: climb towards the episodes that came out better than others of the same start."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar

from digirl_dist.algorithm.options import GrpoOptions
from digirl_dist.algorithm.plugins import AlgorithmPlugin, LearningContext, LearnsFrom
from digirl_dist.errors import SettingsError

if TYPE_CHECKING:
    from digirl_dist.algorithm import AlgorithmFactory


@dataclass
class GrpoSettings(GrpoOptions, AlgorithmPlugin):
    """Group-relative policy optimisation."""

    def __post_init__(self) -> None:
        """Raises SettingsError."""
        if self.group_size < 2:
            raise SettingsError("algorithm.grpo.group_size=1 compares an episode with nothing; 2 are the fewest")

    learns_from: ClassVar[LearnsFrom] = LearnsFrom.groups

    @property
    def episodes_per_start(self) -> int:
        return self.group_size

    def build(self, context: LearningContext) -> AlgorithmFactory:
        from digirl_dist.algorithm.grpo import Grpo

        return lambda agent, peers: Grpo(agent, self, context.seed, peers)
