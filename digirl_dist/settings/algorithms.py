"""What all algorithms may be told, and the blocks of those that there are."""

from __future__ import annotations

from dataclasses import dataclass, field, make_dataclass
from functools import cache
from typing import Any, ClassVar

from digirl_dist.settings.expert import expert
from digirl_dist.settings.plugins import ALGORITHM, settings_classes
from digirl_dist.settings.ranges import Amount, Count, CountOrNone, Few, FewOrNone, Positive, Rate


@dataclass
class OptimizerSettings:
    """How parameters are moved: Adam, over shuffled minibatches."""

    learning_rate: Rate = 1e-3
    """Learning rate of the optimiser, Adam."""
    batch_size: Count = 64
    """Rows of a step of the optimiser, over all ranks; where each rank has emulators of its own, on each."""
    rows_at_once: CountOrNone = expert(0)
    """Most rows of a step that pass through the agent together on each rank, with all that their gradients need: as
    many as fit into memory. 0: all."""
    epochs: Few = 5
    """Passes over the rows in each iteration, within ``max_examples``."""
    max_examples: Count = expert(2000)
    """Most rows of an iteration, over all passes, so that it takes bounded time. Fresh steps of grpo, grpo_replay and
    ppo are learned from in any case; the limit leaves out steps that are imitated."""
    clip_norm: Positive = 1.0
    """Gradients are clipped to this norm."""
    weight_decay: Amount = expert(0.0)
    """Decoupled weight decay."""
    anneal_iterations: Count | None = expert(None)
    """The learning rate falls linearly to 0 over this many iterations. Null: it stays; of ppo, it falls over the run's.
    """
    ADAM_EPS: ClassVar[float] = 1e-8
    """Added to the denominator of Adam's steps."""
    MAX_LOSS: ClassVar[float] = 1e4
    """A step whose loss is beyond this is skipped, as one whose loss or gradient is not finite. If more than half of an
    update's steps are, the update fails."""


@dataclass
class ActorSettings(OptimizerSettings):
    """How the policy is fitted to the actions that an algorithm chose."""

    learning_rate: Rate = 2e-3
    """Learning rate of the optimiser, Adam. With ``agent=device`` it is 5e-3; with ``agent=vlm`` this block is that of
    ``config/multimachine/minibatches/small.yaml``."""


@dataclass
class HindsightSettings:
    """Episodes that met goals of other tasks of the set are also learned from under those tasks' instructions."""

    most: FewOrNone = 3
    """Most goals for which one episode is relabelled; 0: no relabelling."""
    achieved: str | None = None
    """Your function, ``my_file:achieved``. It gets a Trajectory and returns the instructions that it fulfilled, as
    pairs (number of steps after which it had, instruction). Null: what the emulator reported."""


@dataclass
class ValueSettings(OptimizerSettings):
    """How a value function is fitted."""

    batch_size: Count = 128
    epochs: Few = 4
    max_examples: Count = expert(20000)


@dataclass
class ExperienceSettings:
    """What filtered_bc, digirl and grpo_replay learn from beside what an algorithm's own block says."""

    hindsight: HindsightSettings = field(default_factory=HindsightSettings)
    erase_loops: bool = True
    """Do not imitate a step if its screen comes back later, before anything was earned. Set this to false if a needed
    action leaves no trace on the screen, or for DigiRL as published."""
    unsolved: Amount = 0.3
    """Weight of a step of the replay's oldest policy, relative to an imitated step, in tasks that no episode has
    solved. There the policy keeps trying what solved tasks do not need. 0: off (DigiRL as published)."""


@dataclass
class AlgorithmSettingsBase(ExperienceSettings):
    """One block per algorithm; ``train_algorithm`` names the one in use. Or your own algorithm."""

    entry_point: str | None = None
    """Your own algorithm, ``my_file:MyAlgorithm``, instead of the one that ``train_algorithm`` names."""
    kwargs: dict[str, Any] = field(default_factory=dict)
    """Arguments of your algorithm besides the agent, ``peers`` and ``seed``."""


@cache
def algorithm_settings() -> type[AlgorithmSettingsBase]:
    """Returns the class with the blocks of all algorithms that there are."""
    blocks = [(name, kind, field(default_factory=kind)) for name, kind in settings_classes(ALGORITHM).items()]
    made = make_dataclass("AlgorithmSettings", blocks, bases=(AlgorithmSettingsBase,))
    made.__module__ = "digirl_dist.settings"  # where pickle finds it
    made.__doc__ = AlgorithmSettingsBase.__doc__
    return made
