"""``train_algorithm=filtered_bc``: imitate the best trajectories."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from digirl_dist.algorithm.plugins import AlgorithmPlugin, LearningContext
from digirl_dist.settings.algorithms import ActorSettings

if TYPE_CHECKING:
    from digirl_dist.algorithm import AlgorithmFactory


@dataclass
class FilteredBcSettings(AlgorithmPlugin):
    """Reward-filtered behaviour cloning."""

    top_share: float = 0.1
    """The best tenth of the replay by return is imitated, with all that tie with its last …"""
    min_return: float = 0.0
    """… if their return is above this."""
    discount: float = 0.7
    """Steps weigh by their discounted return to go, so that detours long before a success count little."""
    drop_unchanged: bool = True
    """Steps are not imitated that changed nothing on the screen and earned nothing. Set it to false where a needed
    action leaves no trace on the screen."""
    actor: ActorSettings = field(default_factory=ActorSettings)

    def build(self, context: LearningContext) -> AlgorithmFactory:
        from digirl_dist.algorithm.filtered_bc import FilteredBC

        return lambda agent, peers: FilteredBC(agent, self, context.seed, peers)
