"""``train_algorithm=ppo``: the clipped objective with generalised advantages, for quick environments."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar

from digirl_dist.algorithm.plugins import AlgorithmPlugin, Framework, LearningContext, LearnsFrom
from digirl_dist.settings.algorithms import OptimizerSettings
from digirl_dist.settings.ranges import Amount, Count, Few, Positive, Share, Width

if TYPE_CHECKING:
    from digirl_dist.algorithm import AlgorithmFactory
    from digirl_dist.algorithm.ppo import LearnerFactory


@dataclass
class PpoSettings(OptimizerSettings, AlgorithmPlugin):
    """Proximal policy optimisation. ``batch_size`` counts on each rank with its own emulators."""

    learns_from: ClassVar[LearnsFrom] = LearnsFrom.steps
    frameworks: ClassVar[tuple[Framework, ...]] = (Framework.torch, Framework.jax)
    epochs: Few = 4
    max_examples: Count = 1_000_000
    clip_norm: Positive = 0.5
    adam_eps: Positive = 1e-5
    anneal_iterations: Count | None = None
    """The learning rate falls linearly to 0 over this many iterations; null: over the run's."""
    clip_ratio: Share = 0.2
    """The objective is flat where the ratio of new to old probability is below 1 - this, or above 1 + this."""
    discount: Share = 0.99
    """Discount: the weight of a reward one step later."""
    lam: Share = 0.95
    """λ of the generalised advantage."""
    value_weight: Amount = 0.5
    """Weight of the value function's loss relative to the policy's."""
    width: Width = 64
    """Units of the value function's hidden layer."""

    def build(self, context: LearningContext) -> AlgorithmFactory:
        from digirl_dist.algorithm.ppo import PPO

        iterations = self.anneal_iterations or context.iterations
        learner = _learner(context.framework)
        return lambda agent, peers: PPO(agent, self, iterations, context.seed, peers, learner)


def _learner(framework: Framework) -> LearnerFactory:
    """What makes the updates."""
    match framework:
        case Framework.torch:
            from digirl_dist.algorithm.ppo import TorchLearner

            return TorchLearner
        case Framework.jax:
            from digirl_dist.algorithm.ppo_jax import JaxLearner

            return JaxLearner
