"""The environments of one process: this one, or an actor of a Ray cluster."""

from __future__ import annotations

import os
import pickle
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

import gymnasium

from digirl_dist.user_code.blame import described
from digirl_dist.vec_env.config import EnvMaker, EpisodeCfg


@dataclass(frozen=True)
class StepResult:
    """The result of one environment's step or reset. A reset has no reward."""

    observation: Any
    info: dict[str, Any]
    reward: float = 0.0
    terminated: bool = False
    truncated: bool = False


@dataclass(frozen=True)
class Raised:
    """The exception of one environment's step or reset, as text with its place."""

    reason: str


Result = StepResult | Raised


class Environments:
    """The Gymnasium environments of one process, identified by their number in it."""

    def __init__(self, make: EnvMaker, count: int) -> None:
        self.envs = [make() for _ in range(count)]

    def reset(self, asked: Sequence[tuple[int, EpisodeCfg]]) -> list[Result]:
        return [_caught(partial(_reset, self.envs[number], episode)) for number, episode in asked]

    def step(self, asked: Sequence[tuple[int, Any]]) -> list[Result]:
        return [_caught(partial(_step, self.envs[number], action)) for number, action in asked]

    def warm_up(self, asked: Sequence[tuple[int, int]]) -> list[Result]:
        return [_caught(partial(_warm_up, self.envs[number], steps)) for number, steps in asked]

    def close(self) -> None:
        for env in self.envs:
            env.close()


def _reset(env: gymnasium.Env[Any, Any], episode: EpisodeCfg) -> StepResult:
    return StepResult(*env.reset(seed=episode.seed, options=episode.options))


def _step(env: gymnasium.Env[Any, Any], action: Any) -> StepResult:
    observation, reward, terminated, truncated, info = env.step(action)
    return StepResult(observation, info, float(reward), bool(terminated), bool(truncated))


def _warm_up(env: gymnasium.Env[Any, Any], steps: int) -> StepResult:
    result = StepResult(*env.reset())
    for _ in range(steps):
        result = _step(env, env.action_space.sample())
        if result.terminated or result.truncated:
            env.reset()
    return result


def _caught(act: Callable[[], StepResult]) -> Result:
    """One environment's exception must not keep the results of the others."""
    try:
        return act()
    except (Exception, SystemExit) as error:
        return Raised(described(error))


class RemoteEnvironments(Environments):
    """``Environments`` in an actor. ``packed`` is a packed EnvMaker (see ``user_code.packing``)."""

    def __init__(self, packed: bytes, count: int) -> None:
        super().__init__(pickle.loads(packed), count)

    def process_id(self) -> int:
        """Returns the process id; its answer shows that the environments exist."""
        return os.getpid()
