"""Processes with environments: sends requests to all at once and collects the answers in the same order."""

from __future__ import annotations

import pickle
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Literal, Protocol

from digirl_dist.errors import ClusterError
from digirl_dist.vec_env.config import RayDistributionCfg, VecEnvConfig
from digirl_dist.vec_env.env_process import Environments, RemoteEnvironments, Result, packed_by_ray

Request = Literal["reset", "step", "warm_up"]
Asked = Mapping[int, Any]
"""An EpisodeCfg, an action or a number of steps, by the number of the environment over all processes."""

_CLOSE_S = 10.0


@dataclass
class Answers:
    """The answers to one request, by environment number, and why processes were lost, by theirs."""

    results: dict[int, Result] = field(default_factory=dict)
    lost: dict[int, str] = field(default_factory=dict)


class Pool(Protocol):
    """The processes of a ``VecEnv``."""

    def ask(self, request: Request, asked: Asked) -> Answers:
        """Asks environments, which must not be those of processes that were lost.

        Raises what actions that cannot travel raise, before any environment is asked.
        """

    def close(self) -> None:
        """Closes every environment. Idempotent."""


class LocalPool:
    """All environments in this process."""

    def __init__(self, config: VecEnvConfig) -> None:
        self.environments = Environments(config.env, config.env_num)

    def ask(self, request: Request, asked: Asked) -> Answers:
        return Answers(dict(zip(asked, getattr(self.environments, request)(list(asked.items())), strict=True)))

    def close(self) -> None:
        self.environments.close()


class RayPool:
    """``proc_num`` actors of a Ray cluster."""

    def __init__(self, config: VecEnvConfig, distribution: RayDistributionCfg) -> None:
        """Raises ClusterError if the cluster does not answer or lacks resources."""
        from digirl_dist.ray_cluster.connect import connect

        self._env_num = config.env_num
        self._settings = distribution
        self._actors: dict[int, Any] = {}
        self._cluster = connect(
            distribution.head_address, distribution.start_limit_s, distribution.working_dir, or_start=True
        )
        try:
            self._check_room()
            self._start(config)
        except BaseException:
            self.close()
            raise

    def ask(self, request: Request, asked: Asked) -> Answers:
        import ray

        shares: dict[int, dict[int, Any]] = {}
        for number, what in asked.items():
            shares.setdefault(number // self._env_num, {})[number] = what
        if not ray.is_initialized():  # Ray would start another cluster
            return Answers(lost=dict.fromkeys(shares, "this program has left the Ray cluster"))
        each = self._env_num
        packed = {
            process: packed_by_ray([(number % each, what) for number, what in share.items()])
            for process, share in shares.items()
        }
        calls = {process: self._actors[process].answer.remote(request, asked) for process, asked in packed.items()}
        answers = Answers()
        if calls:
            ray.wait(list(calls.values()), num_returns=len(calls), timeout=self._settings.step_limit_s)
        for process, call in calls.items():
            try:
                answers.results.update(zip(shares[process], self._results(call), strict=True))
            except ClusterError as error:
                self._drop(process)
                answers.lost[process] = str(error)
        return answers

    def close(self) -> None:
        """Closes every environment within a limit, then kills all processes."""
        import ray

        actors, self._actors = self._actors, {}
        if actors and ray.is_initialized():
            ray.wait([actor.close.remote() for actor in actors.values()], num_returns=len(actors), timeout=_CLOSE_S)
            for actor in actors.values():
                ray.kill(actor)
        self._cluster.close()

    def _check_room(self) -> None:
        """Raises ClusterError if the cluster is too small; Ray itself would wait for ever."""
        settings, there = self._settings, self._cluster.resources()
        for kind, each in (("CPU", settings.cpu_num_per_proc), ("GPU", settings.gpu_num_per_proc)):
            wanted, found = settings.proc_num * each, there.get(kind, 0.0)
            if wanted > found:
                raise ClusterError(
                    f"{settings.proc_num} processes with {each:g} {kind} each need {wanted:g} {kind}s, "
                    f"but the Ray cluster has {found:g}; set {kind.lower()}_num_per_proc or proc_num lower"
                )

    def _start(self, config: VecEnvConfig) -> None:
        import ray

        from digirl_dist.user_code.packing import pack

        remote: Any = ray.remote
        settings = self._settings
        options = {"num_cpus": settings.cpu_num_per_proc, "num_gpus": settings.gpu_num_per_proc, "max_restarts": 0}
        kind = remote(scheduling_strategy="SPREAD", **options)(RemoteEnvironments)
        packed = pack(config.env)
        self._actors = {process: kind.remote(packed, config.env_num) for process in range(settings.proc_num)}
        waiting = {actor.process_id.remote(): process for process, actor in self._actors.items()}
        ready, _ = ray.wait(list(waiting), num_returns=len(waiting), timeout=settings.start_limit_s)
        for call in ready:
            try:
                self._get(call)
            except ClusterError as error:
                raise ClusterError(f"process {waiting[call]} did not start: {error}") from error
        if len(ready) < len(waiting):
            raise ClusterError(
                f"only {len(ready)} of {len(waiting)} processes started within {settings.start_limit_s:.0f} s: "
                f"not enough of the cluster is free for {settings.cpu_num_per_proc:g} CPUs and "
                f"{settings.gpu_num_per_proc:g} GPUs each"
            )

    def _results(self, call: Any) -> list[Result]:
        """Returns what a process answered for its environments. Raises ClusterError as ``_get``."""
        packed = self._get(call)
        try:
            results: list[Result] = pickle.loads(packed)
        except Exception as error:  # of a class that cannot be made here
            raise _unreadable(error) from error
        return results

    def _get(self, call: Any) -> Any:
        """Returns what a process answered in time. Raises ClusterError if it is gone, too slow, or cannot be read."""
        import ray
        from ray.exceptions import GetTimeoutError, RayActorError

        try:
            return ray.get(call, timeout=0)
        except GetTimeoutError as error:
            raise ClusterError(f"it did not answer within {self._settings.step_limit_s:.0f} s") from error
        except RayActorError as error:
            said = str(error).strip().splitlines()
            made = "creation task" in said[0]
            raise ClusterError(
                f"its environments cannot be made: {said[-1]}" if made else f"it is gone: {said[0]}"
            ) from error
        except Exception as error:  # what an environment answers may be anything, also what cannot travel
            raise _unreadable(error) from error

    def _drop(self, process: int) -> None:
        import ray

        ray.kill(self._actors.pop(process))


def _unreadable(error: Exception) -> ClusterError:
    last = str(error).strip().splitlines()[-1:]
    return ClusterError(f"its answer cannot be read: {' '.join(last)}")
