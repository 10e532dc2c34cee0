"""An episode that breaks an update is found and moved aside; any other fault keeps its own error."""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

from digirl_dist.collection import CollectionResult
from digirl_dist.errors import TrainingError
from digirl_dist.parallel.peers import Peers
from digirl_dist.storage import parquet
from digirl_dist.storage.checkpoint import Checkpoints
from digirl_dist.storage.trajectory_store import Store
from digirl_dist.tasks import Round
from digirl_dist.trainer.inprocess import InProcessTrainer
from digirl_dist.trainer.sifting import sift
from digirl_dist.trajectory import Observation, Trajectory
from tests.trainer.test_inprocess import ALGORITHMS, Forgetful, episodes, flat, learn_until, run, trainer


class Updates:
    """Attempts of updates from numbers, of which ``fails`` says whether these fail."""

    def __init__(self, fails: Callable[[set[int]], bool], workers: int = 1) -> None:
        self._fails = fails
        self._workers = workers
        self.made: list[int] = []
        self.last: list[int] = []

    def sifted(self, count: int = 64, known: Sequence[str] = ()) -> list[int]:
        """Numbers are of the workers in turn."""
        numbers = [int(str(number)) for number in range(1000, 1000 + count)]  # no two are one object
        found = sift(numbers, self._attempt, lambda number: f"w{(number - 1000) % self._workers}", known)
        assert not found or sorted([*found, *self.last]) == numbers, "the last attempt was the one without them"
        return [number - 1000 for number in found]

    def _attempt(self, numbers: Sequence[int]) -> bool:
        self.made.append(len(numbers))
        self.last = list(numbers)
        return not self._fails({number - 1000 for number in numbers})


@pytest.mark.parametrize("workers", [1, 4])
@pytest.mark.parametrize("broken", [{0}, {63}, {17}])
def test_exactly_the_broken_one_is_found_in_few_attempts(broken: set[int], workers: int) -> None:
    updates = Updates(lambda numbers: bool(numbers & broken), workers)
    assert set(updates.sifted()) == broken and len(updates.made) <= 8 + 2 * 8


@pytest.mark.parametrize("broken", [{3, 40}, {0, 1, 2, 3, 4, 5}, set(range(20))])
def test_no_number_of_broken_ones_is_too_many_while_they_are_a_minority(broken: set[int]) -> None:
    updates = Updates(lambda numbers: bool(numbers & broken))
    assert set(updates.sifted()) == broken


@pytest.mark.parametrize(("workers", "liars"), [(4, {3}), (2, {1}), (6, {0, 4}), (64, {17}), (5, {2, 3})])
def test_workers_are_suspected_before_episodes_whatever_their_share(workers: int, liars: set[int]) -> None:
    updates = Updates(lambda numbers: any(number % workers in liars for number in numbers), workers)
    assert set(updates.sifted(192)) == {number for number in range(192) if number % workers in liars}
    assert len(updates.made) <= 8 + 2 * len(liars) * (workers.bit_length() + 2)
    again = Updates(lambda numbers: any(number % workers in liars for number in numbers), workers)
    assert len(again.sifted(192, [f"w{liar}" for liar in liars])) == len(updates.sifted(192))
    assert len(again.made) <= 1 + 2 * len(liars) + 2, "whom an earlier update suspected is tried first"


def test_a_worker_whose_episodes_break_an_update_only_beside_others_is_found() -> None:
    """As in groups: alone, the liar's have nobody to be compared with."""
    updates = Updates(lambda numbers: {number % 4 for number in numbers} > {1}, 4)
    assert {number % 4 for number in updates.sifted()} == {1}


@pytest.mark.parametrize("workers", [1, 2, 4, 64])
@pytest.mark.parametrize("fails", [lambda numbers: True, bool, lambda numbers: len(numbers) > 5])
def test_an_update_that_fails_on_any_data_is_given_up_soon(fails: Callable[[set[int]], bool], workers: int) -> None:
    updates = Updates(fails, workers)
    assert updates.sifted() == [] and sum(updates.made) <= 64 * 64 and len(updates.made) <= 128


class Picky:
    """Learns by another algorithm, but cannot bear some episodes; with ``bug``, none."""

    def __init__(self, agent: nn.Module, peers: Peers, bug: bool = False) -> None:
        self._inner = ALGORITHMS["filtered_bc"](agent, peers)  # type: ignore[arg-type]
        self._bug = bug

    def update(self, fresh: Sequence[Trajectory], replay: Sequence[Trajectory]) -> Any:
        figures = self._inner.update(fresh, replay)  # the state has changed when it fails
        for episode in [*fresh, *replay]:
            if self._bug or episode.ticket.task.id == "poison":
                raise ZeroDivisionError(f"cannot learn from {episode.episode_id}")
        return figures

    def state_dict(self) -> dict[str, Any]:
        return dict(self._inner.state_dict())

    def load_state_dict(self, state: Any) -> None:
        self._inner.load_state_dict(state)


def poisoned(iteration: int, *numbers: int) -> list[Trajectory]:
    found = episodes(iteration)
    for number in numbers:
        task = replace(found[number].ticket.task, id="poison")
        found[number] = replace(found[number], ticket=replace(found[number].ticket, task=task), worker="w7")
    return found


def test_a_poisoned_episode_moves_aside_and_the_run_goes_on_as_if_it_had_never_been(tmp_path: Path) -> None:
    learner, store = trainer(tmp_path / "poisoned", Picky), Store(tmp_path / "poisoned" / "trajectories")  # type: ignore[arg-type]
    checkpoint = learner.resume()
    for iteration in range(3):
        found = poisoned(iteration, *([5, 20] if iteration == 1 else []))
        store.append(CollectionResult(iteration, found))
        update = learner.update(checkpoint, store)
        checkpoint = update.checkpoint
        if iteration == 1:
            assert [(one.worker, one.iteration, one.ticket) for one in update.refused] == [("w7", 1, 5), ("w7", 1, 20)]
            assert "ZeroDivisionError: cannot learn from e1-5" in update.refused[0].reason
            assert update.figures["episodes_refused"] == 2
        else:
            assert not update.refused

    def without(iteration: int) -> list[Trajectory]:
        return [one for one in episodes(iteration) if (iteration, one.ticket.index) not in [(1, 5), (1, 20)]]

    clean = trainer(tmp_path / "clean", Picky)  # type: ignore[arg-type]
    learn_until(3, clean, Store(tmp_path / "clean" / "trajectories"), without)
    assert checkpoint.tensors == clean.resume().tensors

    folder = tmp_path / "poisoned" / "trajectories"
    assert len(parquet.read(folder / "000001.parquet")) == 22
    assert sorted(path.name for path in (folder / ".refused").glob("*.parquet")) == [
        "000001-00005.parquet",
        "000001-00020.parquet",
    ]
    note = json.loads((folder / ".refused" / "000001-00005.json").read_text())
    assert (note["worker"], note["ticket"]) == ("w7", 5)


class Fragile(Forgetful):
    """Breaks off in the middle of fitting, where it is in training mode, in which value functions see noise."""

    def critic_inputs(self, observations: Sequence[Observation]) -> torch.Tensor:
        seen = super().critic_inputs(observations)
        return seen + torch.randn_like(seen) if self.training else seen

    def log_prob(self, observations: Sequence[Observation], actions: Sequence[Any]) -> torch.Tensor:
        if any(seen.text == "poison" for seen in observations):
            raise ZeroDivisionError
        return super().log_prob(observations, actions)


def test_an_attempt_that_broke_off_leaves_nothing_to_the_next_one(tmp_path: Path) -> None:
    found = episodes(0)
    place = next(number for number, one in enumerate(found) if one.reward > 0)
    steps = [replace(step, observation=replace(step.observation, text="poison")) for step in found[place].steps]
    poison = replace(found[place], steps=steps)
    ends = []
    for name, collected in (("poisoned", [poison, *found[place + 1 :]]), ("clean", found[place + 1 :])):
        learner = InProcessTrainer(Fragile, ALGORITHMS["paper"], Checkpoints(tmp_path / name / "checkpoints"), 60, 4)
        store = Store(tmp_path / name / "trajectories")
        checkpoint = learner.resume()
        store.append(CollectionResult(0, collected))
        ends.append(learner.update(checkpoint, store))
    assert [len(end.refused) for end in ends] == [1, 0]
    poisoned_state, clean_state = (end.checkpoint.trainer_state()["algorithm"] for end in ends)
    assert flat(poisoned_state) == flat(clean_state)
    assert ends[0].checkpoint.tensors == ends[1].checkpoint.tensors


def test_a_run_that_was_killed_after_the_move_goes_on(tmp_path: Path) -> None:
    run(tmp_path, ALGORITHMS["filtered_bc"], 1)
    store = Store(tmp_path / "trajectories")
    store.append(CollectionResult(1, poisoned(1, 5)))
    store.refuse([store.read(1)[5]], "said before")
    store.refuse([store.read(0)[3]], "an older one, which the trainer has seen")
    update = trainer(tmp_path, Picky)  # type: ignore[arg-type]
    assert update.update(update.resume(), Store(tmp_path / "trajectories")).figures["episodes_refused"] == 0


def test_a_bug_ends_the_run_with_its_own_error_and_nothing_moves(tmp_path: Path) -> None:
    store = Store(tmp_path / "trajectories")
    store.append(CollectionResult(0, episodes(0)))
    learner = trainer(tmp_path, lambda agent, peers: Picky(agent, peers, bug=True))  # type: ignore[arg-type]
    told = r"Picky.update: ZeroDivisionError: cannot learn from e0-0 \(at .*test_sifting.py:\d+ in update\)"
    with pytest.raises(TrainingError, match=told):
        learner.update(learner.resume(), store)
    assert not store.refused.all() and len(parquet.read(tmp_path / "trajectories" / "000000.parquet")) == 24


def test_an_iteration_whose_only_episode_moved_aside_is_still_closed(tmp_path: Path) -> None:
    store = Store(tmp_path)
    store.append(CollectionResult(0, episodes(0)[:1]))
    store.refuse([store.read(0)[0]], "it broke")
    assert Store(tmp_path).has(Round(0)) and not Store(tmp_path).read(0)
