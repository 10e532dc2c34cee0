"""The environments of one process: this one, or an actor of a Ray cluster."""

from __future__ import annotations

import os
import pickle
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from digirl_dist.vec_env.config import EnvMaker, EpisodeCfg


@dataclass(frozen=True)
class StepResult:
    """The result of one environment's step or reset. A reset has no reward."""

    observation: Any
    info: dict[str, Any]
    reward: float = 0.0
    terminated: bool = False
    truncated: bool = False


class Environments:
    """The Gymnasium environments of one process, identified by their number in it."""

    def __init__(self, make: EnvMaker, count: int) -> None:
        self.envs = [make() for _ in range(count)]

    def reset(self, asked: Sequence[tuple[int, EpisodeCfg]]) -> list[StepResult]:
        return [
            StepResult(*self.envs[number].reset(seed=episode.seed, options=episode.options))
            for number, episode in asked
        ]

    def step(self, asked: Sequence[tuple[int, Any]]) -> list[StepResult]:
        answers = []
        for number, action in asked:
            observation, reward, terminated, truncated, info = self.envs[number].step(action)
            answers.append(StepResult(observation, info, float(reward), bool(terminated), bool(truncated)))
        return answers

    def close(self) -> None:
        for env in self.envs:
            env.close()


class RemoteEnvironments:
    """``Environments`` in an actor. ``packed`` is a packed EnvMaker (see ``user_code.packing``)."""

    def __init__(self, packed: bytes, count: int) -> None:
        self._environments = Environments(pickle.loads(packed), count)

    def process_id(self) -> int:
        """Returns the process id; its answer shows that the environments exist."""
        return os.getpid()

    def reset(self, asked: Sequence[tuple[int, EpisodeCfg]]) -> list[StepResult]:
        return self._environments.reset(asked)

    def step(self, asked: Sequence[tuple[int, Any]]) -> list[StepResult]:
        return self._environments.step(asked)

    def close(self) -> None:
        self._environments.close()
