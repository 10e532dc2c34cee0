"""What a ``VecEnv`` is made of: the environment, how many of it, the episodes, and where the processes run."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any

import gymnasium

EnvMaker = Callable[[], "gymnasium.Env[Any, Any]"]


@dataclass(frozen=True)
class EpisodeCfg:
    """One episode: what the environment's ``reset`` is given."""

    seed: int
    options: dict[str, Any] | None = None


@dataclass(frozen=True)
class RayDistributionCfg:
    """``proc_num`` processes on a Ray cluster, each with all environments of one process.

    ``head_address``: HOST, HOST:PORT or ray://HOST:PORT; None: the cluster of this machine, or a local one that ends
    with the environment. ``working_dir`` is a folder that travels to the nodes and becomes the processes' own.
    """

    proc_num: int
    gpu_num_per_proc: float = 1
    head_address: str | None = None
    working_dir: str | None = None
    cpu_num_per_proc: float = 1
    start_limit_s: float = 60.0
    """Longest wait for the cluster, and again for the processes."""
    step_limit_s: float = 300.0
    """Longest step or reset."""


@dataclass(frozen=True)
class VecEnvConfig:
    """``env_num`` environments in each process, which share the queue of ``task_configs``: one entry an episode.

    ``metrics_path`` is a file to which each episode adds one JSON line when it is over.
    """

    env: EnvMaker
    env_num: int
    task_configs: Sequence[EpisodeCfg]
    metrics_path: str | None = None
    distribution: RayDistributionCfg | None = field(default=None, kw_only=True)

    def __post_init__(self) -> None:
        if self.env_num < 1:
            raise ValueError(f"env_num={self.env_num}: at least one environment is needed")

    def distribute(self, distribution: RayDistributionCfg) -> VecEnvConfig:
        """The same on several processes; this config stays as it is. Raises TypeError, ValueError."""
        if not isinstance(distribution, RayDistributionCfg):
            raise TypeError(f"a distribution is a RayDistributionCfg, not {type(distribution).__name__}")
        if distribution.proc_num < 1:
            raise ValueError(f"proc_num={distribution.proc_num}: at least one process is needed")
        return replace(self, distribution=distribution)


def gymnasium_env(env_id: str, **kwargs: Any) -> EnvMaker:
    """A registered environment by its id, as ``VecEnvConfig`` takes it."""
    return partial(gymnasium.make, env_id, **kwargs)
