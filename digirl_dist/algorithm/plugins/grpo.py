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
    """How the policy maximises its clipped objective."""

    learning_rate: Rate = 1e-3
    epochs: Few = 4
    max_examples: Count = 4000


@dataclass
class GrpoSettings(AlgorithmPlugin):
    """Group-relative policy optimisation."""

    learns_from: ClassVar[LearnsFrom] = LearnsFrom.groups
    group_size: Few = 4
    """Episodes of one task from one start; ``rollout_size`` must be a multiple of this."""
    clip_low: Share = 0.2
    """The objective is flat where the ratio of new to old probability is below 1 - this."""
    clip_high: Positive = 5.0
    """The objective is flat where the ratio is above 1 + this. It is high, because an action of probability 0.3 % would
    otherwise need many updates."""
    replay_weight: Amount = 1.0
    """Mean weight of self-imitation: steps of replay episodes, of any iteration, that ended better than their task's
    recent average. 0: only fresh episodes teach."""
    discount: Share = 0.7
    """Discount of the return to go by which imitated steps are weighted."""
    erase_loops: bool = True
    """Do not imitate a step if its screen comes back later, before anything was earned."""
    unsolved: Amount = 0.3
    """Weight of a step of the replay's oldest policy, relative to an imitated step, in tasks that no episode has
    solved. There the policy keeps trying what solved tasks do not need. 0: off."""
    hindsight: HindsightSettings = field(default_factory=HindsightSettings)
    max_importance: Positive = 2.0
    """Largest weight of a step that a different policy took: an older one (``collect_ahead``), or one of another
    precision."""
    actor: GrpoActorSettings = field(default_factory=GrpoActorSettings)

    @property
    def episodes_per_start(self) -> int:
        return self.group_size

    def build(self, context: LearningContext) -> AlgorithmFactory:
        from digirl_dist.algorithm.grpo import Grpo

        hindsight = hindsight_of(self.hindsight, context)
        return lambda agent, peers: Grpo(agent, self, context.seed, peers, hindsight)
