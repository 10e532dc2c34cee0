"""``train_algorithm=digirl``: imitate the steps that turned out better than expected."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from digirl_dist.algorithm.plugins import AlgorithmPlugin, LearningContext, hindsight_of
from digirl_dist.errors import SettingsError
from digirl_dist.settings.algorithms import ActorSettings, HindsightSettings, ValueSettings
from digirl_dist.settings.ranges import Amount, Count, CountOrNone, Few, Real, Share, SomeShare
from digirl_dist.user_code.entry_point import load_entry_point

if TYPE_CHECKING:
    from digirl_dist.algorithm import AlgorithmFactory

PUBLISHED = ("paper", "code")
"""The advantages that need no function of the user's."""


@dataclass
class DigirlSettings(AlgorithmPlugin):
    """Advantage-filtered training with instruction-level and step-level value functions."""

    advantage: str = "paper"
    """Which steps are imitated: by the formula of the ``paper``, of its released ``code``, or by your own function
    ``my_file:my_advantage``, which is above 0 for them."""
    top_share: SomeShare = 1.0
    """Share of the episodes that are candidates: those that exceeded the instruction-level value most. Of these, the
    ones that ended better than it expected are imitated. Published: 0.1."""
    lam: Share = 0.5
    """``paper``: how fast the step advantage shifts from the outcome to the values, going back from the end."""
    discount: Share = 0.5
    """``code``: discount of the returns that are added to the step advantage."""
    margin: Real = 0.05
    """``code``: by how much a step must be better than expected."""
    erase_loops: bool = True
    """A step is never good if its screen comes back later, before anything was earned (false: as published)."""
    unsolved: Amount = 0.3
    """Weight of a step of the replay's oldest policy, relative to an imitated step, in tasks that no episode has
    solved. There the policy keeps trying what solved tasks do not need. 0: off (as published)."""
    hindsight: HindsightSettings = field(default_factory=HindsightSettings)
    frames: Few = 2
    """Number of latest observations that the step-level value sees together."""
    validation_share: Share = 0.2
    """Share of the episodes that are held out of training, to measure losses and accuracies."""
    warmup_iterations: CountOrNone = 0
    """Number of first iterations in which only the value functions learn."""
    value_episodes: Count = 1024
    """Number of newest episodes to which the value functions are fitted, and from which episodes are chosen; offline,
    all."""
    instruction_value: ValueSettings = field(default_factory=ValueSettings)
    step_value: ValueSettings = field(default_factory=ValueSettings)
    actor: ActorSettings = field(default_factory=lambda: ActorSettings(epochs=20, max_examples=3000))
    """How the policy is fitted. Few steps pass both filters, so there are more passes over them."""

    def __post_init__(self) -> None:
        """Raises SettingsError."""
        if self.advantage not in PUBLISHED and ":" not in self.advantage:
            raise SettingsError(
                f"algorithm.digirl.advantage must be paper, code or my_file:my_function, not {self.advantage!r}"
            )

    def build(self, context: LearningContext) -> AlgorithmFactory:
        from digirl_dist.algorithm.digirl import DigiRL

        own = None if self.advantage in PUBLISHED else load_entry_point(self.advantage, "algorithm.digirl.advantage")
        hindsight = hindsight_of(self.hindsight, context)
        return lambda agent, peers: DigiRL(agent, self, context.seed, peers, context.max_steps, own, hindsight)
