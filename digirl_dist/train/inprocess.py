"""Updates in this process."""

from __future__ import annotations

import time
from collections.abc import Callable

import torch

from digirl_dist.agent import Agent, AgentFactory
from digirl_dist.algorithm import Algorithm
from digirl_dist.checkpoint import Checkpoint, Checkpoints
from digirl_dist.errors import CheckpointError
from digirl_dist.store import Store
from digirl_dist.train import Update

AlgorithmFactory = Callable[[Agent], Algorithm]


class InProcessTrainer:
    """Trainer in this process.

    ``replay_size`` bounds the episodes that an update may look back on; the first weights follow from ``seed``.
    """

    def __init__(
        self, agent: AgentFactory, algorithm: AlgorithmFactory, checkpoints: Checkpoints, replay_size: int, seed: int
    ) -> None:
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(seed)
            self._agent = agent()
            self._algorithm = algorithm(self._agent)
        self._checkpoints = checkpoints
        self._replay_size = replay_size

    def resume(self) -> Checkpoint:
        newest = self._checkpoints.newest()
        if newest is None:
            return self._save(0, {})
        try:
            self._agent.load_state_dict(newest.state())
            self._algorithm.load_state_dict(newest.trainer_state())
        except (RuntimeError, KeyError, ValueError) as error:
            raise CheckpointError(
                f"{newest.folder} does not fit the configured agent and algorithm; use another save_path, or what the "
                f"run was started with ({' '.join(str(error).split())[:200]} …)"
            ) from error
        return newest

    def update(self, checkpoint: Checkpoint, store: Store) -> Update:
        started_at = time.monotonic()
        replay = store.replay(checkpoint.iteration, self._replay_size)
        fresh = [trajectory for trajectory in replay if trajectory.ticket.iteration == checkpoint.iteration]
        figures = self._algorithm.update(fresh, replay)
        learned_at = time.monotonic()
        return Update(self._save(checkpoint.iteration + 1, figures), figures, started_at, learned_at)

    def close(self) -> None:
        """Nothing runs beside this process."""

    def _save(self, iteration: int, figures: dict[str, float]) -> Checkpoint:
        return self._checkpoints.save(iteration, self._agent.state_dict(), self._algorithm.state_dict(), figures)
