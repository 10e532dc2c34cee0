"""``train_algorithm=grpo``: climb towards the episodes that came out better than others of the same start."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, ClassVar

from digirl_dist.algorithm.plugins import AlgorithmPlugin, LearningContext, LearnsFrom, hindsight_of
from digirl_dist.settings.algorithms import ActorSettings, HindsightSettings
from digirl_dist.settings.ranges import Amount, Count, Few, Positive, Rate, Share

if TYPE_CHECKING:
    from digirl_dist.algorithm import AlgorithmFactory


@dataclass
class GrpoActorSettings(ActorSettings):
    """How the policy climbs its clipped objective."""

    learning_rate: Rate = 1e-3
    epochs: Few = 4
    max_examples: Count = 4000


@dataclass
class GrpoSettings(AlgorithmPlugin):
    """Group-relative policy optimisation."""

    learns_from: ClassVar[LearnsFrom] = LearnsFrom.groups
    group_size: Few = 4
    """Episodes of one task from one start; ``rollout_size`` must be a multiple."""
    clip_low: Share = 0.2
    """The ratio of new to old probability earns nothing below 1 - this …"""
    clip_high: Positive = 5.0
    """… or above 1 + this: high, for an action of probability 0.3 % would need many updates otherwise."""
    replay_weight: Amount = 1.0
    """How much a step counts that is imitated because its episode, of any iteration in the replay, ended better than
    its task lately does on average (self-imitation); 0: the fresh episodes alone."""
    discount: Share = 0.7
    """Steps that are imitated weigh by their discounted return to go …"""
    erase_loops: bool = True
    """… and not at all if their screen comes back later, before anything was earned."""
    unsolved: Amount = 0.3
    """How much a step of the replay's oldest policy counts, beside one of another episode that is imitated, in tasks
    that no episode has solved: there the policy goes on trying what the solved ones do not need. 0: nothing."""
    hindsight: HindsightSettings = field(default_factory=HindsightSettings)
    max_importance: Positive = 2.0
    """Largest weight of a step that another policy took than the one that learns: an older one (``collect_ahead``), or
    one of another precision."""
    actor: GrpoActorSettings = field(default_factory=GrpoActorSettings)

    @property
    def episodes_per_start(self) -> int:
        return self.group_size

    def build(self, context: LearningContext) -> AlgorithmFactory:
        from digirl_dist.algorithm.grpo import Grpo

        hindsight = hindsight_of(self.hindsight, context)
        return lambda agent, peers: Grpo(agent, self, context.seed, peers, hindsight)
