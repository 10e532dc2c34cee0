"""``train_algorithm=grpo_replay``: GRPO mixed with imitation of the replay's successes."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar

from digirl_dist.algorithm.options import GrpoReplayOptions
from digirl_dist.algorithm.plugins import AlgorithmPlugin, LearningContext, LearnsFrom, experience_of

if TYPE_CHECKING:
    from digirl_dist.algorithm import AlgorithmFactory


@dataclass
class GrpoReplaySettings(GrpoReplayOptions, AlgorithmPlugin):
    """GRPO mixed with imitation of the replay's successes, relabelled ones included, and with kept-open steps."""

    learns_from: ClassVar[LearnsFrom] = LearnsFrom.groups

    @property
    def episodes_per_start(self) -> int:
        return self.group_size

    def build(self, context: LearningContext) -> AlgorithmFactory:
        from digirl_dist.algorithm.grpo_replay import GrpoReplay

        experience = experience_of(context)
        return lambda agent, peers: GrpoReplay(agent, self, context.seed, peers, experience)
