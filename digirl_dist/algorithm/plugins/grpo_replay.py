"""``train_algorithm=grpo_replay``: GRPO mixed with imitation of the replay's successes."""

from __future__ import annotations

from dataclasses import dataclass

from digirl_dist.algorithm import AlgorithmFactory
from digirl_dist.algorithm.options import GrpoReplayOptions
from digirl_dist.algorithm.plugins import LearningContext, experience_of
from digirl_dist.algorithm.plugins.grpo import GrpoSettings


@dataclass
class GrpoReplaySettings(GrpoReplayOptions, GrpoSettings):
    """GRPO mixed with imitation of the replay's successes, relabelled ones included, and with kept-open steps."""

    def build(self, context: LearningContext) -> AlgorithmFactory:
        from digirl_dist.algorithm.grpo_replay import GrpoReplay

        experience = experience_of(context)
        return lambda agent, peers: GrpoReplay(agent, self, context.seed, peers, experience)
