"""The configuration of a ``VecEnv``: the environment, its number, the episodes, and the placement of processes."""

from __future__ import annotations

import math
import operator
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from numbers import Integral, Real
from typing import Any

import gymnasium

EnvMaker = Callable[[], "gymnasium.Env[Any, Any]"]


@dataclass(frozen=True)
class EpisodeCfg:
    """One episode: the arguments of the environment's ``reset``."""

    seed: int
    options: dict[str, Any] | None = None

    def __post_init__(self) -> None:
        """Takes NumPy's integers, too, which Gymnasium refuses as seeds. Raises TypeError for what is no integer."""
        if self.seed is not None:
            object.__setattr__(self, "seed", operator.index(self.seed))


@dataclass(frozen=True)
class RayDistributionCfg:
    """Distribution over ``proc_num`` processes of a Ray cluster, each with ``env_num`` environments.

    ``head_address``: HOST, HOST:PORT or ray://HOST:PORT, or ``auto`` for the cluster that Ray finds on this machine;
    None: that in RAY_ADDRESS, else a local one that ends with the environment. ``working_dir`` is a folder that is
    copied to the nodes as the processes' working directory.
    """

    proc_num: int
    gpu_num_per_proc: float = 1
    head_address: str | None = None
    working_dir: str | None = None
    cpu_num_per_proc: float = 1
    start_limit_s: float = 60.0
    """Longest wait in seconds for the cluster, and again for the processes."""
    step_limit_s: float = 300.0
    """Longest step or reset in seconds."""

    def __post_init__(self) -> None:
        """Raises TypeError and ValueError, which name the argument."""
        _refuse_no_count("proc_num", self.proc_num)
        for name in ("gpu_num_per_proc", "cpu_num_per_proc", "start_limit_s", "step_limit_s"):
            given: Any = getattr(self, name)
            if isinstance(given, bool) or not isinstance(given, Real):
                raise TypeError(f"{name}={given!r} is no number")
            amount = float(given)
            if name.endswith("_s"):
                if not 0 < amount <= 1e8:  # Ray takes no infinite time
                    raise ValueError(f"{name}={given}: more than 0 seconds are needed, and at most 100,000,000")
            elif not 0 <= amount < math.inf or (amount > 1 and amount % 1):
                raise ValueError(f"{name}={given}: 0 or more is needed, and a whole number beyond 1, as Ray has it")


@dataclass(frozen=True)
class VecEnvConfig:
    """``env_num`` environments per process, which share the queue ``task_configs`` with one entry per episode.

    Each episode appends one JSON line to the file ``metrics_path`` when it ends.
    """

    env: EnvMaker
    env_num: int
    task_configs: Sequence[EpisodeCfg]
    metrics_path: str | None = None
    distribution: RayDistributionCfg | None = field(default=None, kw_only=True)

    def __post_init__(self) -> None:
        """Raises TypeError and ValueError, which name the argument."""
        if not callable(self.env):
            raise TypeError(
                "env is a function that makes an environment, such as gymnasium_env('CartPole-v1'), "
                f"not {self.env!r:.80}"
            )
        _refuse_no_count("env_num", self.env_num)
        if self.env_num < 1:
            raise ValueError(f"env_num={self.env_num}: at least one environment is needed")

    def distribute(self, distribution: RayDistributionCfg) -> VecEnvConfig:
        """Returns a copy distributed over several processes. Raises TypeError, ValueError."""
        if not isinstance(distribution, RayDistributionCfg):
            raise TypeError(f"a distribution is a RayDistributionCfg, not {type(distribution).__name__}")
        if distribution.proc_num < 1:
            raise ValueError(f"proc_num={distribution.proc_num}: at least one process is needed")
        return replace(self, distribution=distribution)


def _refuse_no_count(name: str, given: object) -> None:
    if isinstance(given, bool) or not isinstance(given, Integral):
        raise TypeError(f"{name}={given!r} is no whole number")


def gymnasium_env(env_id: str, **kwargs: Any) -> EnvMaker:
    """Returns the factory of a registered environment for ``VecEnvConfig``."""
    return partial(gymnasium.make, env_id, **kwargs)
