"""``train_algorithm=ppo``: the clipped objective with generalised advantages, for quick environments."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import ClassVar

from digirl_dist.algorithm import AlgorithmFactory
from digirl_dist.algorithm.options import PpoOptions
from digirl_dist.algorithm.plugins import AlgorithmPlugin, LearningContext, LearnsFrom


@dataclass
class PpoSettings(PpoOptions, AlgorithmPlugin):
    """Proximal policy optimisation. ``batch_size`` counts on each rank with its own emulators. With ``agent=vlm`` the
    optimiser is that of ``config/multimachine/minibatches/small.yaml``."""

    learns_from: ClassVar[LearnsFrom] = LearnsFrom.steps

    def build(self, context: LearningContext) -> AlgorithmFactory:
        from digirl_dist.algorithm.ppo import PPO

        settings = replace(self, anneal_iterations=self.anneal_iterations or context.iterations)
        return lambda agent, peers: PPO(agent, settings, context.seed, peers)
