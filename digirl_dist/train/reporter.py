"""The reporter of rank 0: evaluates the policy, stores episodes and checkpoint, writes the figures, prints a line."""

from __future__ import annotations

import time
from collections.abc import Callable
from contextlib import closing
from dataclasses import dataclass, field
from pathlib import Path

import torch

from digirl_dist.agent import Agent, contract
from digirl_dist.collection import CollectionResult
from digirl_dist.report.follower import Followers
from digirl_dist.report.metrics import Metrics, Outcomes, results, together
from digirl_dist.storage.checkpoint import Checkpoints
from digirl_dist.storage.trajectory_store import Store
from digirl_dist.train.loop import IterationReport, RankLearner
from digirl_dist.train.streams import Stream
from digirl_dist.trajectory import Trajectory
from digirl_dist.user_code.entry_point import saved_state


@dataclass(frozen=True)
class StreamEvaluator:
    """Evaluates the policy on ``episodes`` episodes every ``every`` iterations (0: never), in a stream of its own."""

    stream: Callable[[], Stream]
    max_steps: int | None
    every: int
    episodes: int

    def figures(self, agent: Agent, iteration: int) -> dict[str, float]:
        """Returns mean return and success rate, or nothing in other iterations and if an episode has no end.

        The episodes start alike each time, so that checkpoints can be compared.
        """
        if not self.every or (iteration + 1) % self.every:
            return {}
        found: list[Trajectory] = []
        with closing(self.stream()) as stream:
            while len(found) < self.episodes and not stream.has_endless:
                found.append(self._episode(agent, stream, iteration))
        if stream.has_endless:
            return {}
        successes = sum(episode.success for episode in found)
        return {
            "eval_reward_mean": sum(episode.reward for episode in found) / len(found),
            "eval_success_rate": successes / len(found),
        }

    def _episode(self, agent: Agent, stream: Stream, iteration: int) -> Trajectory:
        with torch.inference_mode():
            while not stream.advance(contract.decisions(agent, [stream.observation], [stream.rng])[0], self.max_steps):
                pass
        episode = stream.episode(iteration)
        stream.next_episode()
        return episode


@dataclass
class RankZeroReporter:
    """Reporter of rank 0, which alone writes the run folder."""

    learner: RankLearner
    evaluator: StreamEvaluator
    trajectories: Path
    checkpoints: Checkpoints
    metrics: Metrics
    log: Followers
    outcomes: Outcomes
    say: Callable[[str], None]
    steps: int
    """Of all emulators of all ranks in one iteration."""
    global_step: int = 0
    _began_at: float = field(default_factory=time.monotonic)

    def report(self, report: IterationReport) -> None:
        self.global_step += self.steps
        own = {
            **self.outcomes.checked(results(report.iteration, report.episodes), report.episodes),
            "policy_version": report.iteration,
            "world_size": self.learner.group.rank.world_size,
            "global_step": self.global_step,
            **self._evaluated(report.iteration),
        }
        figures = together(own, report.figures)
        self._store(report)
        self._save(report)
        figures["iteration_s"] = round(time.monotonic() - self._began_at, 4)
        self._began_at = time.monotonic()
        self.metrics.append(figures)
        self.log.look()
        average = figures.get("episode_reward_avg_100")
        told = "-" if average is None else f"{average:.2f}"
        self.say(f"iteration {report.iteration:3d}  steps {self.global_step}  episode_reward_avg_100 {told}")

    def _evaluated(self, iteration: int) -> dict[str, float | None]:
        found = self.evaluator.figures(self.learner.agent, iteration)
        alike = found.get("eval_success_rate") in (0.0, 1.0)
        return {**found, "eval_success_rate": None} if alike and not self.outcomes.mean_something else {**found}

    def _store(self, report: IterationReport) -> None:
        """Replaces what a killed launch left of this iteration: another number of ranks collects other episodes."""
        (self.trajectories / f"{report.iteration:06d}.parquet").unlink(missing_ok=True)
        # A store that lives on would keep all episodes in memory, since nobody asks it for a replay here.
        Store(self.trajectories).append(CollectionResult(report.iteration, report.episodes))

    def _save(self, report: IterationReport) -> None:
        """Saves the policy, and beside it what every rank needs to resume."""
        algorithm = saved_state(self.learner.algorithm)
        trainer = {"algorithm": algorithm, "replayed": 0, "global_step": self.global_step}
        policy = contract.state_of(self.learner.agent)
        self.checkpoints.save(report.iteration + 1, policy, trainer, report.figures, report.table)
