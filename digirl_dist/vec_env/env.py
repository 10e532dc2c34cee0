"""Many environments as one: ``reset`` and ``step`` take and return one entry per environment."""

from __future__ import annotations

import weakref
from collections.abc import Iterable, Mapping, Sequence
from contextlib import closing
from functools import partial
from numbers import Integral
from typing import Any

import numpy as np
from msgspec import structs

from digirl_dist.errors import ClusterError, EmulatorError, SettingsError, on_error
from digirl_dist.types import Closeable
from digirl_dist.vec_env.config import EpisodeCfg, VecEnvConfig
from digirl_dist.vec_env.episodes import Episodes
from digirl_dist.vec_env.pool import Answers, LocalPool, RayPool
from digirl_dist.worker_program.environments import EnvHost, Result


class Batch(list[Any]):
    """Observations, in which ``in`` compares by identity, so that ``None in observations`` works with arrays too."""

    def __contains__(self, wanted: object) -> bool:
        return any(entry is wanted for entry in self)


Stepped = tuple[Batch, list[float], list[bool], list[bool], list[dict[str, Any]]]


class ProcessLostError(ClusterError):
    """A process ended or does not answer. Its environments lose their episodes; the other processes continue."""


class EpisodeFailedError(EmulatorError):
    """An environment raised. It loses its episode, and may be reset; all others have taken their steps."""


class VecEnv(Closeable):
    """``proc_num`` · ``env_num`` environments; number k of process p is environment p · env_num + k.

    An environment's observation is None until it is reset, and again after a reset with no episode left. After its
    episode's end it keeps its last observation, with reward 0, until it is reset. Use this class as a context manager,
    or call ``close``; the end of the program closes it at the latest.
    """

    def __init__(self, config: VecEnvConfig) -> None:
        """Raises ClusterError, a RuntimeError, if the cluster is unavailable."""
        self._config = config
        where = config.distribution
        self._count = config.env_num * (1 if where is None else where.proc_num)
        self._episodes = Episodes(config.task_configs, config.metrics_path)
        self._lost: set[int] = set()
        self._pool: LocalPool | RayPool = LocalPool(config) if where is None else RayPool(config, where)
        self._close = weakref.finalize(self, _close, self._pool, self._episodes, self._count)

    @property
    def episodes_left(self) -> int:
        """The number of episodes that have not begun."""
        return self._episodes.left

    @property
    def all_done(self) -> bool:
        """Whether no episode is left or running."""
        return self._episodes.all_done

    @property
    def active_task_configs(self) -> dict[int, EpisodeCfg]:
        """The episodes that run now, by the number of their environment."""
        running = {env: self._episodes.running(env) for env in range(self._count)}
        return {env: one.episode for env, one in running.items() if one is not None and not one.is_over}

    def get_observations(self) -> Batch:
        """Returns the newest observation of every environment, None where there is none."""
        return Batch(self._now(env, acted=False).observation for env in range(self._count))

    def warm_up(self, steps: int = 10) -> None:
        """Steps every environment that has no episode by sampled actions, so that what loads late is loaded.

        Nothing of it is counted. Raises ProcessLostError and EpisodeFailedError.
        """
        self._check_open()
        there = [env for env in range(self._count) if self._process(env) not in self._lost]
        idle = [env for env in there if self._episodes.running(env) is None]
        self._check(self._pool.ask("warm_up", dict.fromkeys(idle, steps)), {})

    def reset(self, env_ids: Sequence[int] | None = None) -> tuple[Batch, list[dict[str, Any]]]:
        """Begins the next episodes in these environments (None: in all), in the given order.

        Returns observations, None where no episode was left, and infos, which tell the episode by its number in
        ``episode_index`` and by its ``task_config``. Raises TypeError and ValueError before it resets anything
        (where options cannot travel, the episodes that ran there have ended), and ProcessLostError and
        EpisodeFailedError after the other environments have begun; ``get_observations`` then has theirs.
        """
        self._check_open()
        envs = list(range(self._count)) if env_ids is None else self._checked(env_ids)
        gone = {self._process(env) for env in envs} & self._lost
        taken = self._episodes.take([env for env in envs if self._process(env) not in gone])
        with on_error(partial(self._episodes.give_back, taken.values())):
            asked = {env: (episode.seed, episode.options) for env, (_, episode) in taken.items()}
            answers = self._pool.ask("reset", asked)
        numbers = {env: number for env, (number, _) in taken.items()}
        for env, (number, episode) in taken.items():
            first = answers.results.get(env)
            if first is None or first.raised:
                self._episodes.fail(env, number, episode, "lost" if first is None else "raised")
            else:
                info = {**first.info, "episode_index": number, "task_config": episode}
                self._episodes.begin(env, number, episode, structs.replace(first, info=info))
        self._check(answers, numbers, gone)
        seen = [self._now(env, acted=False) for env in envs]
        return Batch(one.observation for one in seen), [one.info for one in seen]

    def step(self, action: Sequence[Any]) -> Stepped:
        """Takes one action per environment; environments without a running episode ignore theirs.

        Returns observations, rewards, terminated, truncated and infos. Raises TypeError and ValueError before any step,
        and ProcessLostError and EpisodeFailedError after the steps of the other environments.
        """
        self._check_open()
        if not isinstance(action, list | tuple):
            raise TypeError(f"actions are a list with one entry per environment, not {type(action).__name__}")
        if len(action) != self._count:
            raise ValueError(f"{len(action)} actions for {self._count} environments")
        acting = {env: action[env] for env in range(self._count) if self._is_under_way(env)}
        answers = self._pool.ask("step", acting)
        numbers = {env: running.number for env in acting if (running := self._episodes.running(env)) is not None}
        for env, answer in answers.results.items():
            if not answer.raised:
                self._episodes.step(env, answer)
        self._check(answers, numbers)
        return _columns([self._now(env, env in acting) for env in range(self._count)])

    def close(self) -> None:
        """Closes every environment and the processes started for them. Idempotent."""
        self._close()

    @property
    def runner(self) -> EnvHost:
        """The environments of this process; unavailable when distributed."""
        return self._local("runner").host

    @property
    def simulation_app(self) -> list[Any]:
        """The Gymnasium environments without their wrappers; unavailable when distributed."""
        return [env.unwrapped for env in self._local("simulation_app").host.envs]

    def get_dt(self) -> float:
        """Returns the duration of a step in seconds; unavailable when distributed.

        Raises ValueError if the environment does not declare its frames per second.
        """
        fps = self._local("get_dt()").host.envs[0].metadata.get("render_fps")
        if not fps:
            raise ValueError("this environment does not declare how long a step is (metadata['render_fps'])")
        return 1.0 / float(fps)

    def finished(self) -> bool:
        """Returns ``all_done``; unavailable when distributed."""
        self._local("finished()")
        return self.all_done

    def _local(self, name: str) -> LocalPool:
        if not isinstance(self._pool, LocalPool):
            raise NotImplementedError(f"{name} is unavailable when distributed; see all_done and episodes_left")
        return self._pool

    def _check_open(self) -> None:
        if not self._close.alive:
            raise SettingsError("these environments are closed: make them again")

    def _checked(self, env_ids: Sequence[int]) -> list[int]:
        if not isinstance(env_ids, list | tuple | np.ndarray):
            raise TypeError(f"env_ids is a list of environment numbers, not {type(env_ids).__name__}")
        for env in env_ids:
            if isinstance(env, bool) or not isinstance(env, Integral):
                raise TypeError(f"env_ids has {env!r}, which is not a whole number")
            if not 0 <= int(env) < self._count:
                raise ValueError(f"there is no environment {env}; they are 0 to {self._count - 1}")
        if len(set(env_ids)) < len(env_ids):
            raise ValueError(f"env_ids {list(env_ids)} names an environment twice")
        return [int(env) for env in env_ids]

    def _is_under_way(self, env: int) -> bool:
        running = self._episodes.running(env)
        return running is not None and not running.is_over

    def _process(self, env: int) -> int:
        return env // self._config.env_num

    def _check(self, answers: Answers, episodes: Mapping[int, int], gone: Iterable[int] = ()) -> None:
        """Raises an error that names every process that was lost and every environment that raised, with its episode.

        Whatever the others answered is recorded before. ``gone`` are processes that were lost before.
        """
        reasons = dict.fromkeys(gone, "it was lost before")
        reasons |= {self._process(member.envs[0]): reason for member, reason in answers.lost}
        self._lost |= reasons.keys()
        lost, raised = [], []
        for process, reason in reasons.items():
            envs = [env for env in range(self._count) if self._process(env) == process]
            lost.append(f"process {process} with environments {', '.join(map(str, envs))} was lost: {reason}")
            for env in envs:
                self._episodes.leave(env, "lost")
        for env, answer in answers.results.items():
            if answer.raised:
                what = f"episode {episodes[env]}" if env in episodes else "its warm-up"
                raised.append(f"environment {env} of process {self._process(env)} raised in {what}: {answer.raised}")
                self._episodes.leave(env, "raised")
        if lost:
            raise ProcessLostError("; ".join([*lost, *raised]))
        if raised:
            raise EpisodeFailedError("; ".join(raised))

    def _now(self, env: int, acted: bool) -> Result:
        running = self._episodes.running(env)
        if running is None:
            return Result()
        last = running.last
        return last if acted else structs.replace(last, reward=0.0)


def _columns(answers: Sequence[Result]) -> Stepped:
    return (
        Batch(answer.observation for answer in answers),
        [answer.reward for answer in answers],
        [answer.terminated for answer in answers],
        [answer.truncated for answer in answers],
        [answer.info for answer in answers],
    )


def _close(pool: LocalPool | RayPool, episodes: Episodes, count: int) -> None:
    with closing(pool):  # also where the metrics cannot be written
        for env in range(count):
            episodes.leave(env, "closed")
