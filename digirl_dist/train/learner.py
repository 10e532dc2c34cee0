"""The learning half of a rank: its copy of the policy, and the algorithm that updates it with the other ranks."""

from __future__ import annotations

from dataclasses import dataclass

from digirl_dist.agent import Agent, contract
from digirl_dist.algorithm import Algorithm
from digirl_dist.algorithm.contract import figures_of
from digirl_dist.errors import TrainingError
from digirl_dist.parallel.group import Group
from digirl_dist.train.data_selector import UpdateData
from digirl_dist.trainer.memory import naming_too_little_memory
from digirl_dist.trainer.replicas import check_replicas, refuse_broken
from digirl_dist.trainer.seeding import seeded
from digirl_dist.user_code.blame import blaming


@dataclass(frozen=True)
class RankLearner:
    """The policy of this rank and its algorithm. Weights are the same on every rank after every update."""

    group: Group
    agent: Agent
    algorithm: Algorithm
    seed: int
    """Of what the agent draws while it learns; ranks differ."""

    def update(self, iteration: int, data: UpdateData) -> dict[str, float]:
        """Makes one update from the data of all ranks and returns the algorithm's figures.

        Makes none, and returns no figures, if no rank has anything new; a rank without data contributes empty
        minibatches.
        Every rank must call it. Raises PeerError when a rank does not take part or ends with other weights, and
        TrainingError for weights that are no numbers.
        """
        if self.group.largest(len(data.fresh)) == 0:
            return {}
        update = f"{type(self.algorithm).__name__}.update"
        with seeded(self.seed, iteration), blaming(update, TrainingError), naming_too_little_memory():
            figures = figures_of(self.algorithm, self.algorithm.update(data.fresh, data.replay))
        self.agent.train(False)  # it acts next, and an algorithm of the user's may have left it in training mode
        weights = contract.state_of(self.agent)
        check_replicas(self.group, weights)
        refuse_broken(weights)
        return figures
