"""The environments of one process: this one, or an actor of a Ray cluster."""

from __future__ import annotations

import os
import pickle
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from copy import deepcopy
from dataclasses import dataclass
from functools import partial
from typing import Any

import gymnasium

from digirl_dist.errors import EmulatorError
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
        """Raises EmulatorError for code that ends by ``sys.exit``, TypeError for what is no environment."""
        self.envs: list[gymnasium.Env[Any, Any]] = []
        try:
            for _ in range(count):
                self.envs.append(_made(make))
        except BaseException:
            self.close()
            raise

    def reset(self, asked: Sequence[tuple[int, EpisodeCfg]]) -> list[Result]:
        return [_caught(partial(_reset, self.envs[number], episode)) for number, episode in asked]

    def step(self, asked: Sequence[tuple[int, Any]]) -> list[Result]:
        return [_caught(partial(_step, self.envs[number], action)) for number, action in asked]

    def warm_up(self, asked: Sequence[tuple[int, int]]) -> list[Result]:
        return [_caught(partial(_warm_up, self.envs[number], steps)) for number, steps in asked]

    def close(self) -> None:
        """Closes all, then raises what the last that could not be closed raised. Idempotent."""
        with ExitStack() as stack:
            while self.envs:
                stack.callback(self.envs.pop().close)


def _made(make: EnvMaker) -> gymnasium.Env[Any, Any]:
    try:
        env = make()
    except SystemExit as error:
        raise EmulatorError(f"an environment cannot be made: {described(error)}") from error
    if not all(callable(getattr(env, name, None)) for name in ("reset", "step", "close")):
        raise TypeError(f"what makes environments made {env!r:.80}, which is no Gymnasium environment")
    return env


def _reset(env: gymnasium.Env[Any, Any], episode: EpisodeCfg) -> StepResult:
    observation, info = env.reset(seed=episode.seed, options=deepcopy(episode.options))
    return StepResult(deepcopy(observation), info)


def _step(env: gymnasium.Env[Any, Any], action: Any) -> StepResult:
    """Copies what environment and caller may change later, or share with other environments, as vectors do."""
    observation, reward, terminated, truncated, info = env.step(deepcopy(action))
    return StepResult(deepcopy(observation), info, float(reward), bool(terminated), bool(truncated))


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


def packed_by_ray(content: object) -> bytes:
    """Returns content that may be of classes which are in no module of the other side."""
    import ray.cloudpickle as cloudpickle

    packing: Any = cloudpickle
    packed: bytes = packing.dumps(content)
    return packed


class RemoteEnvironments(Environments):
    """``Environments`` in an actor. ``packed`` is a packed EnvMaker (see ``user_code.packing``).

    Questions and answers travel as bytes: arrays that Ray itself carries are read-only.
    """

    def __init__(self, packed: bytes, count: int) -> None:
        super().__init__(pickle.loads(packed), count)

    def answer(self, request: str, packed: bytes) -> bytes:
        """Returns the packed answers of ``reset``, ``step`` or ``warm_up``."""
        return packed_by_ray(getattr(self, request)(pickle.loads(packed)))

    def process_id(self) -> int:
        """Returns the process id; its answer shows that the environments exist."""
        return os.getpid()
