"""What the runs of ``script/chaos --lies-of-content`` consist of: an emulator with screens, and a slow algorithm."""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from typing import Any, ClassVar

import numpy as np

from chaos.content import HEIGHT, WIDTH
from chaos.rows import black_png
from digirl_dist.agent import Agent
from digirl_dist.algorithm.plugins import LearningContext
from digirl_dist.emulator import DiscreteActions, EmulatorSpec
from digirl_dist.parallel.peers import Peers
from digirl_dist.settings.plugins import ALGORITHM, settings_classes
from digirl_dist.tasks import Task
from digirl_dist.trajectory import Observation, Trajectory, Transition
from digirl_dist.types import Json

_ACTIONS = 4
_STEPS = 5
_STEP_S = 0.1
_UPDATES = 1000


class Screens:
    """Fulfils ``Emulator``: a black screen, and four numbers, of which the largest is the right action."""

    spec: ClassVar[EmulatorSpec] = EmulatorSpec(DiscreteActions(_ACTIONS), _ACTIONS, (HEIGHT, WIDTH), longest=_STEPS)

    @staticmethod
    def tasks(task_set: str, split: str) -> list[Task]:
        """Returns the one task there is."""
        return [Task("screens")]

    def __init__(self) -> None:
        self._screen = black_png(HEIGHT, WIDTH)

    def reset(self, task: Task, seed: int) -> Observation:
        self._rng, self._at = np.random.default_rng(seed), 0
        time.sleep(_STEP_S)
        return self._seen()

    def step(self, action: Json) -> Transition:
        time.sleep(_STEP_S)
        self._at += 1
        reward = float(action == self._right) / _STEPS
        return Transition(self._seen(), reward, self._at == _STEPS)

    def close(self) -> None:
        """There is nothing to release."""

    def _seen(self) -> Observation:
        vector = self._rng.random(_ACTIONS, np.float32)
        self._right = int(vector.argmax())
        return Observation("", self._screen, vector)


class SlowLearner:
    """Fulfils ``Algorithm``: sleeps for ``seconds`` in each iteration, then learns by each of the ``algorithms``."""

    def __init__(self, agent: Agent, peers: Peers, seed: int, algorithms: Sequence[str], seconds: float = 0.0) -> None:
        context = LearningContext(seed, _UPDATES, None, tasks=[Task("rehearsal"), Task("screens")])
        kinds = settings_classes(ALGORITHM)
        self._algorithms = {name: kinds[name]().build(context)(agent, peers) for name in algorithms}
        self._seconds = seconds
        self._newest = -1

    def update(self, fresh: Sequence[Trajectory], replay: Sequence[Trajectory]) -> dict[str, float]:
        newest = max((one.ticket.iteration for one in fresh), default=-1)
        if newest > self._newest:  # what looks for the episodes that break an update makes it many times
            self._newest = newest
            time.sleep(self._seconds)
        figures: dict[str, float] = {}
        for name, algorithm in self._algorithms.items():
            figures |= {f"{name}_{key}": value for key, value in algorithm.update(fresh, replay).figures.items()}
        return figures

    def state_dict(self) -> dict[str, Any]:
        return {name: algorithm.state_dict() for name, algorithm in self._algorithms.items()}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        for name, algorithm in self._algorithms.items():
            algorithm.load_state_dict(state[name])
