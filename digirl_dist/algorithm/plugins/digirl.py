"""``train_algorithm=digirl``: imitate the steps that turned out better than expected."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from digirl_dist.algorithm.options import PUBLISHED, DigirlOptions
from digirl_dist.algorithm.plugins import AlgorithmPlugin, LearningContext, hindsight_of
from digirl_dist.user_code.entry_point import load_entry_point

if TYPE_CHECKING:
    from digirl_dist.algorithm import AlgorithmFactory


@dataclass
class DigirlSettings(DigirlOptions, AlgorithmPlugin):
    """Advantage-filtered training with instruction-level and step-level value functions."""

    def build(self, context: LearningContext) -> AlgorithmFactory:
        from digirl_dist.algorithm.digirl import DigiRL

        own = None if self.advantage in PUBLISHED else load_entry_point(self.advantage, "algorithm.digirl.advantage")
        hindsight = hindsight_of(self.hindsight, context)
        return lambda agent, peers: DigiRL(agent, self, context.seed, peers, context.max_steps, own, hindsight)
