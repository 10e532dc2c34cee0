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
    """Share of the replay that is imitated: the best by return, ties included, if their return is above
    ``min_return``."""
    min_return: Real = 0.0
    """Episodes are imitated only if their return is above this."""
    discount: Share = 0.7
    """Discount of the return to go by which steps are weighted, so that detours long before a success count little."""
    erase_loops: bool = True
    """Do not imitate a step if its screen comes back later, before anything was earned. Set this to false if a needed
    action leaves no trace on the screen."""
    avoid: Amount = 1.0
    """Weight of an action that ended an episode without success, relative to an imitated one. Such actions are made
    less likely. 0: failures teach nothing."""
    unsolved: Amount = 0.3
    """Weight of a step of the replay's oldest policy, relative to an imitated step, in tasks that no episode has
    solved. There the policy keeps trying what solved tasks do not need. 0: off."""
    hindsight: HindsightSettings = field(default_factory=HindsightSettings)
    actor: ActorSettings = field(default_factory=lambda: ActorSettings(epochs=20, max_examples=3000))
    """How the policy is fitted. Few steps are good at first, so there are many passes over them."""

    def build(self, context: LearningContext) -> AlgorithmFactory:
        from digirl_dist.algorithm.filtered_bc import FilteredBC

        hindsight = hindsight_of(self.hindsight, context)
        return lambda agent, peers: FilteredBC(agent, self, context.seed, peers, hindsight)
