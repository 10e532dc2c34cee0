"""``train_algorithm=grpo``: climb towards the episodes that came out better than others of the same start."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from digirl_dist.algorithm import AlgorithmFactory
from digirl_dist.algorithm.options import GrpoOptions
from digirl_dist.algorithm.plugins import AlgorithmPlugin, LearningContext, LearnsFrom


@dataclass
class GrpoSettings(GrpoOptions, AlgorithmPlugin):
    """Group-relative policy optimisation."""

    learns_from: ClassVar[LearnsFrom] = LearnsFrom.groups

    @property
    def episodes_per_start(self) -> int:
        return self.group_size

    def build(self, context: LearningContext) -> AlgorithmFactory:
        from digirl_dist.algorithm.grpo import Grpo

        return lambda agent, peers: Grpo(agent, self, context.seed, peers)
