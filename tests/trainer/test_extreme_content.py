"""Valid one by one, fatal together: one worker of four sends what intake accepts, at its limits and many times."""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from itertools import cycle
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from rank_launch import launch, ranks
from torch import nn

from digirl_dist.algorithm import AlgorithmFactory
from digirl_dist.algorithm.optimizer import MinibatchOptimizer
from digirl_dist.algorithm.ppo import PPO
from digirl_dist.assembly.trainers import launched_again
from digirl_dist.collection import CollectionResult
from digirl_dist.parallel.peers import Peers
from digirl_dist.settings import OptimizerSettings, PpoSettings
from digirl_dist.storage.checkpoint import Checkpoint, Checkpoints
from digirl_dist.storage.trajectory_store import Store
from digirl_dist.tasks import Round
from digirl_dist.trainer import Trainer, Update
from digirl_dist.trainer.inprocess import InProcessTrainer
from digirl_dist.trajectory import Step, Trajectory
from tests.trainer.test_inprocess import ALGORITHMS, Forgetful, episodes

pytestmark = [pytest.mark.component, pytest.mark.long_file(60)]

LARGEST = float(np.finfo(np.float32).max)
LIAR = "w3"


class Reinforce:
    """An algorithm of a user's: by this package's optimiser, or without any care by one of torch's."""

    def __init__(self, agent: Any, peers: Peers, is_careful: bool) -> None:
        self._agent = agent
        self._careful = MinibatchOptimizer(agent.parameters(), OptimizerSettings(), 0, "my loss", peers)
        self._careless = None if is_careful else torch.optim.SGD(agent.parameters(), lr=1e-3)

    def update(self, fresh: Sequence[Trajectory], replay: Sequence[Trajectory]) -> dict[str, float]:
        rows = [(step, episode.reward) for episode in fresh for step in episode.steps]
        if self._careless is None:
            return {"loss": self._careful.fit(len(rows), lambda batch: self._loss([rows[row] for row in batch])).loss}
        self._careless.zero_grad()
        loss = self._loss(rows)
        loss.backward()  # type: ignore[no-untyped-call]
        self._careless.step()
        return {"loss": float(loss.detach())}

    def state_dict(self) -> dict[str, Any]:
        return self._careful.state_dict()

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        self._careful.load_state_dict(state)

    def _loss(self, rows: Sequence[tuple[Step, float]]) -> torch.Tensor:
        log_probs = self._agent.log_prob([step.observation for step, _ in rows], [step.action for step, _ in rows])
        loss: torch.Tensor = -(log_probs * torch.tensor([reward for _, reward in rows])).mean()
        return loss


def _careful(agent: nn.Module, peers: Peers) -> Reinforce:
    return Reinforce(agent, peers, is_careful=True)


ALL: dict[str, AlgorithmFactory] = {
    **ALGORITHMS,
    "ppo": lambda agent, peers: PPO(agent, PpoSettings(), 1, peers),
    "own": _careful,  # type: ignore[dict-item]
    "careless": lambda agent, peers: Reinforce(agent, peers, is_careful=False),
}

Lie = Callable[[Step, int], Step]
"""Another step in place of one, of which the number is known."""


def _vector(step: Step, value: float) -> Step:
    return replace(step, observation=replace(step.observation, vector=np.full(3, value, np.float32)))


LIES: dict[str, Lie] = {
    "rewards": lambda step, _: replace(step, reward=LARGEST),
    "fines": lambda step, _: replace(step, reward=-LARGEST),
    "rewards of both signs": lambda step, number: replace(step, reward=LARGEST * (-1) ** number),
    "vectors": lambda step, _: _vector(step, LARGEST),
    "certain actions": lambda step, _: replace(step, log_prob=LARGEST),
    "impossible actions": lambda step, _: replace(step, log_prob=-LARGEST),
    "everything": lambda step, _: replace(_vector(step, -LARGEST), reward=LARGEST, log_prob=-LARGEST),
}


def lied(iteration: int, lie: Lie, times: int = 1) -> list[Trajectory]:
    """An iteration's episodes by four workers in turn; each of the liar's steps is one of ``times``."""
    found = []
    for number, one in enumerate(episodes(iteration)):
        steps = [replace(step, terminated=False) for step in one.steps[:-1] * times] + one.steps[-1:]
        if f"w{number % 4}" == LIAR:
            one = replace(one, steps=[lie(step, place + number // 4) for place, step in enumerate(steps)])
        found.append(replace(one, worker=f"w{number % 4}"))
    return found


def honest(iteration: int) -> list[Trajectory]:
    return [replace(one, worker=f"w{number % 4}") for number, one in enumerate(episodes(iteration))]


def learn(trainer: Trainer, folder: Path, collected: Sequence[list[Trajectory]]) -> list[Update]:
    """As ``host.train`` does, from where the folder's run stopped."""
    store, updates = Store(folder / "trajectories"), []
    checkpoint = trainer.resume()
    for found in collected[checkpoint.iteration :]:
        if not store.has(Round(checkpoint.iteration)):
            store.append(CollectionResult(checkpoint.iteration, found))
        updates.append(trainer.update(checkpoint, store))
        checkpoint = updates[-1].checkpoint
    trainer.close()
    return updates


def check(updates: Sequence[Update], folder: Path, iterations: Sequence[int]) -> None:
    """Only the liar's episodes went, and nothing that is no number came of the others."""
    assert {one.worker for update in updates for one in update.refused} <= {LIAR}
    for update in updates:
        assert all(torch.isfinite(tensor).all() for tensor in _weights(update.checkpoint))
        own = {name: figure for name, figure in update.figures.items() if name != "loss"}  # which is the user's
        assert all(math.isfinite(figure) for figure in own.values()), own
    workers = [one.worker for iteration in iterations for one in Store(folder / "trajectories").read(iteration)]
    assert len([worker for worker in workers if worker != LIAR]) == 18 * len(iterations)


def _weights(checkpoint: Checkpoint) -> list[torch.Tensor]:
    return list(checkpoint.state().values())


def _nightly(*values: str) -> Any:
    return pytest.param(*values, marks=pytest.mark.nightly)


def _pairs() -> list[Any]:
    """Every algorithm with every lie; by day, each with everything at once, and each lie once."""
    by_day = {*zip(ALL, cycle(LIES), strict=False), *((name, "everything") for name in ALL)}
    pairs = [(name, lie) for name in ALL for lie in LIES]
    return [pair if pair in by_day else _nightly(*pair) for pair in pairs]


@pytest.mark.parametrize(("name", "lie"), _pairs())
def test_no_content_of_one_worker_ends_a_run_or_its_next_start(name: str, lie: str, tmp_path: Path) -> None:
    def trainer() -> InProcessTrainer:
        return InProcessTrainer(Forgetful, ALL[name], Checkpoints(tmp_path / "checkpoints"), 60, 4)

    collected = [lied(0, LIES[lie]), lied(1, LIES[lie], times=20)]
    check(learn(trainer(), tmp_path, collected), tmp_path, [0, 1])
    check(learn(trainer(), tmp_path, [*collected, honest(2)]), tmp_path, [2])


@pytest.mark.nightly
@pytest.mark.system
@pytest.mark.timeout(600)  # three launches
@pytest.mark.parametrize("name", ["filtered_bc", "paper", "grpo", "grpo_replay", "ppo", "own"])
def test_nor_a_run_of_two_ranks(name: str, tmp_path: Path) -> None:
    """They end where the update fails, and new ranks go on once the first of them has found the liar alone.

    What has a bounded objective need not fail.
    """
    ended = [0]

    def two_ranks() -> int:
        launched = launch(ranks(2, "-m", "tests.trainer.learning_ranks", name, str(tmp_path)))
        ended[0] += 1
        assert ended[0] == 1 or launched.status == 0, launched.out
        return launched.status

    assert launched_again(two_ranks, tmp_path) == 0
    refused = json.loads((tmp_path / "refused.json").read_text())
    assert refused == [[LIAR] * 6, []] or (refused == [[], []] and name != "filtered_bc")
    checkpoints = Checkpoints(tmp_path / "checkpoints")
    assert all(torch.isfinite(tensor).all() for tensor in _weights(checkpoints.open(2)))
    kept = [one.worker for number in (0, 1) for one in Store(tmp_path / "trajectories").read(number)]
    assert len([worker for worker in kept if worker != LIAR]) == 36
