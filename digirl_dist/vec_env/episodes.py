"""Assigns episodes to environments, and appends a line to the metrics file at each episode's end."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from digirl_dist.settings.paths import PathUse, expanded, refuse_unwritable
from digirl_dist.storage import json_lines
from digirl_dist.vec_env.config import EpisodeCfg
from digirl_dist.worker_program.environments import Result


@dataclass
class Running:
    """An episode in an environment; it stays there until the next reset, even after its end."""

    number: int
    episode: EpisodeCfg
    last: Result
    steps: int = 0
    reward: float = 0.0
    told: bool = False

    @property
    def is_over(self) -> bool:
        return self.last.terminated or self.last.truncated


class Episodes:
    """The queue that all environments share. Only the caller's process holds it, so its order is deterministic."""

    def __init__(self, episodes: Sequence[EpisodeCfg], metrics_path: str | None) -> None:
        """Raises TypeError for what is no episode, SettingsError for a file that cannot be written."""
        self._queue = deque(enumerate(episodes))
        for _, one in self._queue:
            if not isinstance(one, EpisodeCfg):
                raise TypeError(f"task_configs are EpisodeCfgs, such as EpisodeCfg(seed=0), not {one!r:.80}")
        self._running: dict[int, Running] = {}
        self._metrics = None if metrics_path is None else expanded(str(metrics_path), "metrics_path").absolute()
        if self._metrics is not None:
            refuse_unwritable("metrics_path", self._metrics, PathUse.file)
            self._metrics.parent.mkdir(parents=True, exist_ok=True)

    @property
    def left(self) -> int:
        """The number of episodes that have not begun."""
        return len(self._queue)

    @property
    def all_done(self) -> bool:
        return not self._queue and all(running.is_over for running in self._running.values())

    def running(self, env: int) -> Running | None:
        return self._running.get(env)

    def take(self, envs: Sequence[int]) -> dict[int, tuple[int, EpisodeCfg]]:
        """Assigns the next episodes to these environments, in that order, until the queue is empty."""
        for env in envs:
            self.leave(env, "reset")
        return {env: self._queue.popleft() for env in envs[: len(self._queue)]}

    def give_back(self, taken: Iterable[tuple[int, EpisodeCfg]]) -> None:
        """Returns episodes that did not begin to the head of the queue."""
        self._queue.extendleft(sorted(taken, key=lambda one: one[0], reverse=True))

    def begin(self, env: int, number: int, episode: EpisodeCfg, first: Result) -> None:
        self._running[env] = Running(number, episode, first)

    def fail(self, env: int, number: int, episode: EpisodeCfg, because: str) -> None:
        """Counts an episode that ended in its reset."""
        self._tell(env, Running(number, episode, Result()), because)

    def step(self, env: int, answer: Result) -> None:
        running = self._running[env]
        running.last = answer
        running.steps += 1
        running.reward += answer.reward
        if running.is_over:
            self._tell(env, running, "terminated" if answer.terminated else "truncated")

    def leave(self, env: int, because: str) -> None:
        """Ends the environment's episode, if it has one."""
        running = self._running.pop(env, None)
        if running is not None:
            self._tell(env, running, because)

    def _tell(self, env: int, running: Running, ended: str) -> None:
        if running.told or self._metrics is None:
            return
        running.told = True
        line = {
            "episode": running.number,
            "seed": running.episode.seed,
            "env": env,
            "steps": running.steps,
            "reward": running.reward,
            "ended": ended,
        }
        json_lines.append_object(self._metrics, line)
