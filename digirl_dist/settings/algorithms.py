"""What all algorithms may be told, and the blocks of those that there are."""

from __future__ import annotations

from dataclasses import dataclass, field, make_dataclass
from functools import cache
from typing import Any

from digirl_dist.settings.plugins import ALGORITHM, AlgorithmBlock, settings_classes
from digirl_dist.settings.ranges import Count, CountOrNone, Few, FewOrNone, Positive, Rate, Width


@dataclass
class OptimizerSettings:
    """How parameters are moved: Adam, over shuffled minibatches."""

    learning_rate: Rate = 1e-3
    """Of the optimiser, Adam."""
    batch_size: Count = 64
    """Rows per minibatch."""
    accumulate: Few = 1
    """Minibatches that make one step together, as one minibatch of all their rows would."""
    epochs: Few = 5
    """Passes over the rows in each iteration …"""
    max_examples: Count = 2000
    """… but never more rows than this, so that an iteration takes bounded time."""
    clip_norm: Positive = 1.0
    """Longest gradient."""
    ramp_steps: CountOrNone = 0
    """Steps over which the learning rate rises from nothing to its value."""
    adam_eps: Positive = 1e-8
    """Added to the denominator of Adam's steps."""
    max_loss: Positive = 1e4
    """A loss beyond this has exploded and stops the run."""


@dataclass
class ActorSettings(OptimizerSettings):
    """How the policy is fitted to the actions that an algorithm chose."""

    learning_rate: Rate = 2e-3


@dataclass
class HindsightSettings:
    """Episodes that met other goals of the task set than their own are learned from under those instructions too."""

    most: FewOrNone = 3
    """Goals for which one episode is relabelled at most; 0: none."""
    achieved: str | None = None
    """Your function, ``my_file:achieved``, that says of a Trajectory which instructions it fulfilled, as pairs of the
    number of steps after which it had and the instruction. Null: what the emulator said."""


@dataclass
class ValueSettings(OptimizerSettings):
    """How a value function is fitted."""

    width: Width = 128
    """Units of its hidden layer."""
    batch_size: Count = 128
    epochs: Few = 4
    max_examples: Count = 20000


@dataclass
class AlgorithmSettingsBase:
    """One block per algorithm, of which ``train_algorithm`` names the one in use; or an algorithm of yours."""

    entry_point: str | None = None
    """Your own algorithm, ``my_file:MyAlgorithm``, in place of the one that ``train_algorithm`` names."""
    kwargs: dict[str, Any] = field(default_factory=dict)
    """What it is built with, beside the agent, ``peers`` and ``seed``."""

    def block(self, name: str) -> AlgorithmBlock:
        """Returns the settings of one algorithm."""
        block: AlgorithmBlock = getattr(self, name)
        return block


@cache
def algorithm_settings() -> type[AlgorithmSettingsBase]:
    """Returns the class with the blocks of all algorithms that there are."""
    blocks = [(name, kind, field(default_factory=kind)) for name, kind in settings_classes(ALGORITHM).items()]
    made = make_dataclass("AlgorithmSettings", blocks, bases=(AlgorithmSettingsBase,))
    made.__module__ = "digirl_dist.settings"  # where pickle finds it
    made.__doc__ = AlgorithmSettingsBase.__doc__
    return made
