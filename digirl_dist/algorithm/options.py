"""What each algorithm may be told: plain values, which the settings of ``algorithm.NAME`` inherit."""

from __future__ import annotations

from dataclasses import dataclass, field
from enum import Enum
from typing import ClassVar

from digirl_dist.errors import SettingsError
from digirl_dist.settings.algorithms import ActorSettings, OptimizerSettings, ValueSettings
from digirl_dist.settings.expert import expert
from digirl_dist.settings.ranges import Amount, Count, CountOrNone, Few, GroupSize, Positive, Rate, Share, SomeShare

PUBLISHED = ("paper", "code")
"""The advantages of DigiRL that need no function of the user's."""


class Loss(Enum):
    """What the clipped objective compares and averages where an agent speaks in tokens; others have one per step."""

    token = "token"
    """The ratio of each token; all tokens count alike."""
    step = "step"
    """The ratio of each token; they count alike within a step."""
    sequence = "sequence"
    """The ratio of a step's whole answer, per token of it (GSPO)."""


@dataclass
class GrpoActorSettings(ActorSettings):
    """How the policy maximises its clipped objective."""

    learning_rate: Rate = 1e-3
    epochs: Few = 4
    max_examples: Count = expert(4000)
    kl_weight: Amount = expert(0.0)
    """Weight of the divergence from the policy that the run began with."""
    entropy_weight: Amount = expert(0.0)
    """Weight of the policy's entropy: less likely actions, or tokens, get a larger advantage."""


@dataclass
class GrpoOptions:
    """Group-relative policy optimisation."""

    group_size: GroupSize = 8
    """Episodes of one task from one start; ``rollout_size`` must be a multiple of this."""
    loss: Loss = Loss.token
    """For agents that speak in tokens. ``token``: the ratio of each token is clipped, and all tokens count alike;
    ``step``: they count alike within a step; ``sequence``: the ratio is that of a step's whole answer, per token of it
    (GSPO). Other agents have one token per step."""
    per_episode: bool = True
    """Episodes count alike, however many tokens or steps they have. False: tokens, or steps, count alike (as in DAPO).
    """
    clip_low: Share = 0.2
    """The objective is flat where the ratio of new to old probability is below 1 - this."""
    clip_high: Positive = 0.2
    """The objective is flat where the ratio is above 1 + this."""
    divide_by_deviation: bool = expert(True)
    """Divide a group's advantages by its standard deviation. False: do not (Dr. GRPO)."""
    most_importance: Positive = expert(2.0)
    """Largest weight of a token, or step, that a different policy chose: an older one, or one of another precision."""
    actor: GrpoActorSettings = field(default_factory=GrpoActorSettings)


@dataclass
class GrpoReplayOptions(GrpoOptions):
    """GRPO mixed with imitation of the replay's successes, relabelled ones included, and with kept-open steps."""

    group_size: GroupSize = 4
    loss: Loss = expert(Loss.token)
    """As of ``grpo``."""
    per_episode: bool = expert(True)
    """As of ``grpo``."""
    clip_low: Share = expert(0.2)
    """As of ``grpo``."""
    clip_high: Positive = 5.0
    """The objective is flat where the ratio is above 1 + this. It is high, because an action of probability 0.3 % would
    otherwise need many updates."""
    replay_weight: Amount = 1.0
    """Mean weight of the steps of the replay: those imitated, of episodes of any iteration that ended better than their
    task's recent average, together with those kept open (``unsolved``). An answer in tokens weighs as their sum, where
    a compared one weighs as their mean, so divide by an answer's length. 0: only fresh episodes teach."""


@dataclass
class PpoOptions(OptimizerSettings):
    """Proximal policy optimisation."""

    epochs: Few = 4
    max_examples: Count = expert(1_000_000)
    clip_norm: Positive = 0.5
    ADAM_EPS: ClassVar[float] = 1e-5
    clip_ratio: Share = 0.2
    """The objective is flat where the ratio of new to old probability is below 1 - this, or above 1 + this."""
    discount: Share = 0.99
    """Discount: the weight of a reward one step later."""
    lam: Share = 0.95
    """λ of the generalised advantage."""
    entropy_weight: Amount = expert(0.0)
    """Weight of the policy's entropy: less likely actions get a larger advantage."""
    value_weight: Amount = 0.5
    """Weight of the value function's loss relative to the policy's."""


@dataclass
class DigirlOptions:
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
    VALIDATION_SHARE: ClassVar[float] = 0.2
    """Share of the episodes that are held out of training, to measure losses and accuracies."""
    warmup_iterations: CountOrNone = 0
    """Number of first iterations in which only the value functions learn."""
    value_episodes: Count = expert(1024)
    """Number of newest episodes to which the value functions are fitted, and from which episodes are chosen, beside all
    of ``offline.data``."""
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


@dataclass
class FilteredBcOptions:
    """Reward-filtered behaviour cloning."""

    top_share: SomeShare = 0.1
    """Share of the replay that is imitated: the best by return, ties included, if their return is above
    ``min_return``."""
    min_return: Amount = 0.0
    """Episodes are imitated only if their return is above this."""
    newest: Count = 96
    """Of these episodes, at most so many of each task are imitated, the newest: those of earlier policies hold the
    policy back, but for those of one step where most of the newest took one. Relabelled ones count with the task that
    was tried. Offline, all."""
    discount: Share = 0.7
    """Discount of the return to go by which steps are weighted, so that detours long before a success count little."""
    avoid: Amount = 1.0
    """Weight, relative to an imitated action, of one that ended an episode without success. Such actions are made less
    likely, together at most as heavily as if they were as many as the imitated episodes, and a tenth as much those that
    led a failure back to where it had been. 0: failures teach nothing."""
    actor: ActorSettings = field(default_factory=lambda: ActorSettings(epochs=20, max_examples=3000))
    """How the policy is fitted: by many passes over what is good, and fewer while that is few episodes."""
