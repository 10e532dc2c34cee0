"""What an algorithm may be told."""

from dataclasses import dataclass, field
from enum import Enum


@dataclass
class OptimizerSettings:
    """How parameters are moved: Adam, over shuffled minibatches."""

    learning_rate: float = 1e-3
    batch_size: int = 64
    """Rows per minibatch."""
    accumulate: int = 1
    """Minibatches whose gradients are averaged for one step."""
    epochs: int = 5
    """Passes over the rows in each iteration …"""
    max_examples: int = 2000
    """… but never more rows than this, so that an iteration takes bounded time."""
    clip_norm: float = 1.0
    """Longest gradient."""
    ramp_steps: int = 0
    """Steps over which the learning rate rises from nothing to its value."""
    adam_eps: float = 1e-8
    """Added to the denominator of Adam's steps."""
    max_loss: float = 1e4
    """A loss beyond this has exploded and stops the run."""


@dataclass
class ActorSettings(OptimizerSettings):
    """How the policy is fitted to the actions that an algorithm chose."""

    learning_rate: float = 2e-3


@dataclass
class FilteredBcSettings:
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


@dataclass
class ValueSettings(OptimizerSettings):
    """How a value function is fitted."""

    width: int = 128
    """Units of its hidden layer."""
    batch_size: int = 128
    epochs: int = 4
    max_examples: int = 20000


class Advantage(Enum):
    """Which steps DigiRL imitates: by the formula of its paper, or by that of its released code."""

    paper = "paper"
    code = "code"


@dataclass
class DigirlSettings:
    """Advantage-filtered training with instruction-level and step-level value functions."""

    advantage: Advantage = Advantage.paper
    top_share: float = 0.1
    """The tenth of the episodes that surprised the instruction-level value most is looked at, with ties."""
    lam: float = 0.5
    """``paper``: how fast the step advantage turns from the outcome to the values, going back from the end."""
    discount: float = 0.5
    """``code``: of the returns that are added to the step advantage."""
    margin: float = 0.05
    """``code``: what a step must be better than expected by."""
    drop_unchanged: bool = True
    """No step is good that changed nothing on the screen and earned nothing (false: as published)."""
    frames: int = 2
    """Observations, newest last, that the step-level value looks at together."""
    validation_share: float = 0.2
    """Share of the episodes that train nothing and on which losses and accuracies are measured."""
    warmup_iterations: int = 0
    """First iterations in which only the value functions learn."""
    value_episodes: int = 1024
    """Newest episodes on which the value functions are fitted and among which is chosen; offline all."""
    instruction_value: ValueSettings = field(default_factory=ValueSettings)
    step_value: ValueSettings = field(default_factory=ValueSettings)
    actor: ActorSettings = field(default_factory=lambda: ActorSettings(epochs=20))
    """Few steps pass both filters, so there are more passes over them."""


@dataclass
class GrpoActorSettings(ActorSettings):
    """How the policy climbs its clipped objective."""

    learning_rate: float = 1e-3
    epochs: int = 4
    max_examples: int = 4000


@dataclass
class GrpoSettings:
    """Group-relative policy optimisation."""

    group_size: int = 8
    """Episodes of one task from one start; ``rollout_size`` must be a multiple."""
    scale_by_deviation: bool = True
    """Divide advantages by the deviation of their group (false: Dr. GRPO)."""
    clip_low: float = 0.2
    """The ratio of new to old probability earns nothing below 1 - this …"""
    clip_high: float = 0.2
    """… or above 1 + this."""
    max_importance: float = 2.0
    """Largest weight of a step that an older policy took (``collect_ahead``)."""
    actor: GrpoActorSettings = field(default_factory=GrpoActorSettings)


@dataclass
class PpoSettings(OptimizerSettings):
    """Proximal policy optimisation. ``batch_size`` counts on each rank that has emulators of its own."""

    epochs: int = 4
    max_examples: int = 1_000_000
    clip_norm: float = 0.5
    adam_eps: float = 1e-5
    anneal_iterations: int | None = None
    """The learning rate falls linearly to 0 over this many iterations; null: over the run's."""
    clip_ratio: float = 0.2
    """The ratio of new to old probability earns nothing below 1 - this, or above 1 + this."""
    discount: float = 0.99
    lam: float = 0.95
    """Of the generalised advantage."""
    value_weight: float = 0.5
    """How much the value function's loss counts beside the policy's."""
    width: int = 64
    """Units of the value function's hidden layer."""


@dataclass
class AlgorithmSettings:
    """One block per algorithm; ``train_algorithm`` names the one in use."""

    filtered_bc: FilteredBcSettings = field(default_factory=FilteredBcSettings)
    digirl: DigirlSettings = field(default_factory=DigirlSettings)
    grpo: GrpoSettings = field(default_factory=GrpoSettings)
    ppo: PpoSettings = field(default_factory=PpoSettings)
