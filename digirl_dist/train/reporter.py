"""What rank 0 alone does: measure the policy, save it, write the run folder, tell people."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

import torch

from digirl_dist.agent import Agent
from digirl_dist.algorithm import Algorithm
from digirl_dist.collection import CollectionResult
from digirl_dist.report.curves import Curves
from digirl_dist.report.metrics import Metrics, results
from digirl_dist.storage.checkpoint import Checkpoints
from digirl_dist.storage.trajectory_store import Store
from digirl_dist.train.loop import Iteration
from digirl_dist.train.parquet_bytes import joined
from digirl_dist.train.streams import Stream
from digirl_dist.trajectory import Trajectory


@dataclass(frozen=True)
class Measure:
    """Runs ``episodes`` episodes every ``every`` iterations (0: never) in an emulator of its own."""

    stream: Callable[[], Stream]
    max_steps: int | None
    every: int
    episodes: int

    def figures(self, agent: Agent, number: int) -> dict[str, float]:
        """The same episodes each time, so that checkpoints can be compared."""
        if not self.every or (number + 1) % self.every:
            return {}
        stream = self.stream()
        try:
            found = [self._episode(agent, stream, number) for _ in range(self.episodes)]
        finally:
            stream.close()
        successes = sum(episode.success for episode in found)
        return {
            "eval_reward_mean": sum(episode.reward for episode in found) / len(found),
            "eval_success_rate": successes / len(found),
        }

    def _episode(self, agent: Agent, stream: Stream, number: int) -> Trajectory:
        with torch.inference_mode():
            while not stream.advance(agent.act([stream.observation], [stream.rng])[0], self.max_steps):
                pass
        episode = stream.episode(number)
        stream.next_episode()
        return episode


@dataclass
class RankZeroReporter:
    """Reporter of rank 0."""

    agent: Agent
    algorithm: Algorithm
    checkpoints: Checkpoints
    store: Store
    metrics: Metrics
    curves: Sequence[Curves]
    measure: Measure
    say: Callable[[str], None]
    steps: int
    """Of all emulators of all ranks in an iteration."""
    global_step: int = 0
    _began_at: float = field(default_factory=time.monotonic)

    def iteration(self, iteration: Iteration) -> None:
        episodes = joined(iteration.episodes)
        self.global_step += self.steps
        self.store.append(CollectionResult(iteration.number, episodes))
        figures = {
            **results(iteration.number, episodes),
            "policy_version": iteration.number,
            "world_size": len(iteration.states),
            "global_step": self.global_step,
            **{name: round(value, 6) for name, value in iteration.figures.items()},
            **self.measure.figures(self.agent, iteration.number),
        }
        self._save(iteration)
        figures["iteration_s"] = round(time.monotonic() - self._began_at, 4)
        self._began_at = time.monotonic()
        self.metrics.append(figures)
        for curves in self.curves:
            curves.add(figures, iteration.number)
        average = figures.get("episode_reward_avg_100")
        told = "-" if average is None else f"{average:.2f}"
        self.say(f"iteration {iteration.number:3d}  steps {self.global_step}  episode_reward_avg_100 {told}")

    def _save(self, iteration: Iteration) -> None:
        """The policy without any wrapper; beside it everything that every rank needs to go on."""
        ranks = {"global_step": self.global_step, "states": iteration.states}
        trainer = {"algorithm": self.algorithm.state_dict(), "replayed": 0, "ranks": ranks}
        self.checkpoints.save(iteration.number + 1, self.agent.state_dict(), trainer, iteration.figures)
