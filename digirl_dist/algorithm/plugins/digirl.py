"""``train_algorithm=digirl``: imitate the steps that turned out better than expected."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from digirl_dist.algorithm.options import DigirlOptions
from digirl_dist.algorithm.plugins import AlgorithmPlugin, LearningContext, experience_of
from digirl_dist.user_code.entry_point import load_callable

if TYPE_CHECKING:
    from digirl_dist.algorithm import AlgorithmFactory
    from digirl_dist.algorithm.digirl import Rule


@dataclass
class DigirlSettings(DigirlOptions, AlgorithmPlugin):
    """Advantage-filtered training with instruction-level and step-level value functions."""

    def build(self, context: LearningContext) -> AlgorithmFactory:
        from digirl_dist.algorithm.digirl import DigiRL

        rule, experience = self.rule(context.max_steps), experience_of(context)
        return lambda agent, peers: DigiRL(agent, self, context.seed, peers, rule, experience)

    def rule(self, horizon: int | None) -> Rule:
        """Returns which steps are good, of episodes of at most ``horizon`` steps (None: not known)."""
        from digirl_dist.algorithm.digirl import own_rule, paper_rule, released_rule

        match self.advantage:
            case "paper":
                return paper_rule(self.lam, horizon)
            case "code":
                return released_rule(self.discount)
        return own_rule(load_callable(self.advantage, "algorithm.digirl.advantage", [None, None], {}))
