"""``train_algorithm=filtered_bc``: imitate the best trajectories."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from digirl_dist.algorithm.plugins import AlgorithmPlugin, LearningContext, hindsight_of
from digirl_dist.settings.algorithms import ActorSettings, HindsightSettings
from digirl_dist.settings.ranges import Amount, Real, Share, SomeShare

if TYPE_CHECKING:
    from digirl_dist.algorithm import AlgorithmFactory


@dataclass
class FilteredBcSettings(AlgorithmPlugin):
    """Reward-filtered behaviour cloning."""

    top_share: SomeShare = 0.1
    """The best tenth of the replay by return is imitated, with all that tie with its last …"""
    min_return: Real = 0.0
    """… if their return is above this."""
    discount: Share = 0.7
    """Steps weigh by their discounted return to go, so that detours long before a success count little."""
    erase_loops: bool = True
    """Steps are not imitated whose screen comes back later, before anything was earned. Set it to false where a needed
    action leaves no trace on the screen."""
    avoid: Amount = 1.0
    """How much an action counts, beside one that is imitated, that ended an episode without success: it is made less
    likely. 0: failures teach nothing."""
    unsolved: Amount = 0.3
    """How much a step of the replay's oldest policy counts, beside one that is imitated, in tasks that no episode has
    solved: there the policy goes on trying what the solved ones do not need. 0: nothing."""
    hindsight: HindsightSettings = field(default_factory=HindsightSettings)
    actor: ActorSettings = field(default_factory=lambda: ActorSettings(epochs=20, max_examples=3000))
    """Few steps are good at first, so there are many passes over them."""

    def build(self, context: LearningContext) -> AlgorithmFactory:
        from digirl_dist.algorithm.filtered_bc import FilteredBC

        hindsight = hindsight_of(self.hindsight, context)
        return lambda agent, peers: FilteredBC(agent, self, context.seed, peers, hindsight)
