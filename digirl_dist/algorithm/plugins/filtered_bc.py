"""``train_algorithm=filtered_bc``: imitate the best trajectories."""

from __future__ import annotations

from dataclasses import dataclass

from digirl_dist.algorithm import AlgorithmFactory
from digirl_dist.algorithm.options import FilteredBcOptions
from digirl_dist.algorithm.plugins import AlgorithmPlugin, LearningContext, experience_of


@dataclass
class FilteredBcSettings(FilteredBcOptions, AlgorithmPlugin):
    """Reward-filtered behaviour cloning."""

    def build(self, context: LearningContext) -> AlgorithmFactory:
        from digirl_dist.algorithm.filtered_bc import FilteredBC

        experience = experience_of(context)
        return lambda agent, peers: FilteredBC(agent, self, context.seed, peers, experience)
