"""Updates in this process."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import pyarrow as pa
import torch

from digirl_dist.agent import AgentFactory, contract
from digirl_dist.algorithm import AlgorithmFactory
from digirl_dist.algorithm.contract import expect, learned_of, state_of
from digirl_dist.errors import CheckpointError, TrainingError, TrajectoryError
from digirl_dist.parallel.compute_device import device_failed
from digirl_dist.parallel.peers import ALONE, Alone, Peers
from digirl_dist.plain_text import in_short
from digirl_dist.storage.checkpoint import Checkpoint, Checkpoints, State, loading
from digirl_dist.storage.refused_episodes import RefusedEpisode
from digirl_dist.storage.trajectory_store import Store
from digirl_dist.tasks import Round
from digirl_dist.trainer import Update
from digirl_dist.trainer.one_update import naming_too_little_memory, refuse_broken, seeded
from digirl_dist.trainer.sifting import sift
from digirl_dist.trajectory import Trajectory
from digirl_dist.user_code.blame import blaming
from digirl_dist.user_code.entry_point import load_state

_LONGEST_REASON = 500
_NOT_OF_EPISODES = (MemoryError, torch.OutOfMemoryError, CheckpointError, OSError)
"""Errors of an update that no episode is suspected of."""


class InProcessTrainer:
    """Trains in this process; with ``peers``, as one of several ranks that learn together.

    ``replay_size`` limits the number of collected episodes that an update reads. All ``offline`` episodes precede
    them, with iterations below 0. ``seed`` determines the first weights and the random numbers drawn during learning,
    such as dropout.
    """

    def __init__(
        self,
        agent: AgentFactory,
        algorithm: AlgorithmFactory,
        checkpoints: Checkpoints,
        replay_size: int,
        seed: int,
        peers: Peers = ALONE,
        offline: Sequence[Trajectory] = (),
    ) -> None:
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(seed)
            self._agent = agent()
            self._agent.train(False)
            self._algorithm = algorithm(self._agent, peers)
        self.replicas = peers.replicas
        """Whether the other ranks, if any, hold the same weights rather than other shards of them."""
        self._checkpoints = checkpoints
        self._replay_size = replay_size
        self._seed = seed
        # None has the key of another, or of one of this run.
        self._offline = [
            replace(one, ticket=replace(one.ticket, iteration=~place)) for place, one in enumerate(offline)
        ]
        self._alone = isinstance(peers, Alone)
        self._refused: tuple[RefusedEpisode, ...] = ()
        self._table: pa.Table | None = None
        self._iteration: int | None = None
        self._replayed: dict[int, int] = {}
        """How many episodes of each iteration the last update saw; of a checkpoint of old or of ranks, all at -1."""
        self._whole = self._state()

    def resume(self) -> Checkpoint:
        newest = self._checkpoints.newest()
        if newest is None:
            return self.save(0, {})
        self._load(newest)
        return newest

    def update(self, checkpoint: Checkpoint, store: Store) -> Update:
        started_at = time.monotonic()
        figures = self.learn(checkpoint, store)
        learned_at = time.monotonic()
        return Update(self.save(checkpoint.iteration + 1, figures), figures, started_at, learned_at, self._refused)

    def follow(self, iteration: int) -> Checkpoint:
        """Moves to the checkpoint of an iteration and returns it; reads its weights only if they are not loaded yet."""
        checkpoint = self._checkpoints.open(iteration)
        if self._iteration != iteration:
            self._load(checkpoint)
        return checkpoint

    def learn(self, checkpoint: Checkpoint, store: Store) -> dict[str, float]:
        """Makes one update from the store's trajectories without saving it; returns the algorithm's figures.

        Without peers, episodes that break the update are moved aside (see ``sifting``). Raises TrainingError if the
        update fails, TrajectoryError if trajectories are missing.
        """
        iteration = checkpoint.iteration
        fresh = store.read(iteration) if store.has(Round(iteration)) else ()
        collected = self._replay(iteration, store, len(fresh))
        fresh = fresh[-self._replay_size :]
        self._refused = ()
        expect(self._algorithm)
        try:
            with blaming(f"{type(self._algorithm).__name__}.update", TrainingError), naming_too_little_memory():
                returned = self._fit_or_sift(checkpoint, store, fresh, collected)
                figures, self._table = learned_of(self._algorithm, returned)
        except TrainingError as error:
            raise TrainingError(f"{error}. A run with this save_path resumes from {checkpoint.folder}") from error
        self._iteration = iteration + 1
        return {**figures, "episodes_refused": float(len(self._refused))}

    def _fit(self, iteration: int, fresh: Sequence[Trajectory], collected: Sequence[Trajectory]) -> Any:
        """Makes one update and returns what the algorithm returned."""
        self._agent.train(False)  # an attempt that broke off may have left it in training mode
        with seeded(self._seed, iteration):
            returned = self._algorithm.update(fresh, [*self._offline, *collected])
        self._replayed = dict(Counter(one.ticket.iteration for one in collected))
        self._whole = self._state()
        refuse_broken(self.weights())
        return returned

    def _fit_or_sift(
        self, checkpoint: Checkpoint, store: Store, fresh: Sequence[Trajectory], collected: Sequence[Trajectory]
    ) -> Any:
        """Makes the update, if need be without what breaks it (see ``sifting``). Raises its error if that is all."""
        try:
            return self._fit(checkpoint.iteration, fresh, collected)
        except _NOT_OF_EPISODES:
            raise
        except Exception as raised:
            if not self._alone or device_failed(raised):
                raise
            error = raised
        returned: Any = None
        before = checkpoint.state()
        has_learned = False

        def attempt(episodes: Sequence[Trajectory]) -> bool:
            nonlocal returned, has_learned
            chosen = set(map(id, episodes))
            self._load(checkpoint)
            try:
                returned = self._fit(checkpoint.iteration, [one for one in fresh if id(one) in chosen], episodes)
            except _NOT_OF_EPISODES:
                raise
            except Exception:
                return False
            has_learned = has_learned or not all(
                torch.equal(tensor.cpu(), before[name].cpu()) for name, tensor in self.weights().items()
            )
            return True

        known = {one.worker for one in store.refused.all()}
        broken = sift(collected, attempt, lambda one: one.worker, known)
        if not broken or not (has_learned or _are_few(broken, collected)):
            raise error
        self._refused = store.refuse(broken, f"{type(error).__name__}: {in_short(error, _LONGEST_REASON)}")
        return returned

    def save(self, iteration: int, figures: dict[str, float]) -> Checkpoint:
        """Saves the learned weights as the checkpoint of an iteration, and the table of the update beside it."""
        self._iteration = iteration
        table, self._table = self._table, None
        return self._checkpoints.save(iteration, *self._whole, figures, table)

    def weights(self) -> State:
        """Returns the policy's own tensors; if sharded, a gathered copy on rank 0 and nothing on other ranks."""
        return self._whole[0]

    def close(self) -> None:
        """Does nothing: there are no other processes to end."""

    def _load(self, checkpoint: Checkpoint) -> None:
        with loading(str(checkpoint.folder)):
            state = checkpoint.trainer_state()
            load_state(self._agent, checkpoint.state())
            load_state(self._algorithm, state["algorithm"])
            self._replayed = {-1: noted} if isinstance(noted := state["replayed"], int) else noted
        self._iteration = checkpoint.iteration

    def _state(self) -> tuple[State, dict[str, Any]]:
        """Returns the policy's and the trainer's state. All ranks must call it together: weights may be sharded."""
        return contract.state_of(self._agent), {"algorithm": state_of(self._algorithm), "replayed": self._replayed}

    def _replay(self, iteration: int, store: Store, fresh: int) -> list[Trajectory]:
        """Returns the newest collected episodes, ``fresh`` of them new. Raises TrajectoryError if some are missing."""
        replay = store.replay(iteration, self._replay_size)
        wanted = min(self._replay_size, sum(self._replayed.values()) + fresh) - len(store.refused.all())
        lost = max((number for number in self._replayed if not store.has(Round(number))), default=-1)
        found = sum(one.ticket.iteration > lost for one in replay)  # older ones are in the place of those
        if found < wanted:
            raise TrajectoryError(
                f"{store.root} has {found} of the {wanted} newest episodes that iteration {iteration} "
                "learns from; restore the missing files, or start another run"
            )
        return replay


def _are_few(broken: Sequence[Trajectory], collected: Sequence[Trajectory]) -> bool:
    """Returns whether they may break an update without which there is nothing to learn.

    That would go through also if any episode to learn from broke it, as it does where a setting is wrong.
    """
    suspects, workers = ({one.worker for one in each} for each in (broken, collected))
    return len(broken) == 1 or 2 * len(suspects) <= len(workers)
