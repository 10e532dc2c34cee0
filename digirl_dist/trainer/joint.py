"""Updates by all ranks of a launch: rank 0 leads, the others follow its orders.

Between two updates no rank is inside a collective: the followers wait for a word in the store of the launch, so a
collection may take as long as it likes.
"""

from __future__ import annotations

import time
from collections.abc import Callable

from digirl_dist.parallel.group import Group
from digirl_dist.storage.checkpoint import Checkpoint
from digirl_dist.storage.trajectory_store import Store
from digirl_dist.trainer import Update
from digirl_dist.trainer.inprocess import InProcessTrainer
from digirl_dist.trainer.replicas import check_replicas

_STOP = "stop"

TrainerFactory = Callable[[Group], InProcessTrainer]


class JointTrainer:
    """Trainer on rank 0: each update is made by every rank, and saved by this one."""

    def __init__(self, trainer: TrainerFactory, group: Group) -> None:
        self._trainer = trainer(group)
        self._group = group
        self._stopped = False

    def resume(self) -> Checkpoint:
        return self._trainer.resume()

    def update(self, checkpoint: Checkpoint, store: Store) -> Update:
        started_at = time.monotonic()
        self._group.announce(str(checkpoint.iteration))
        self._trainer.follow(checkpoint.iteration)
        figures = _learn(self._trainer, self._group, checkpoint, store)
        learned_at = time.monotonic()
        return Update(self._trainer.save(checkpoint.iteration + 1, figures), figures, started_at, learned_at)

    def close(self) -> None:
        """Let the other ranks go; a second call is harmless."""
        if not self._stopped:
            self._stopped = True
            self._group.announce(_STOP)


def follow(trainer: TrainerFactory, group: Group, store: Store, idle_s: float) -> None:
    """What every rank but the first does: the leader's updates, until it says that there are no more.

    Reads checkpoints and trajectories in the run folder, which the machines of several nodes must share. Raises
    PeerError when the leader says nothing for ``idle_s``.
    """
    own = trainer(group)
    while (order := group.announced(idle_s)) != _STOP:
        _learn(own, group, own.follow(int(order)), store)


def _learn(trainer: InProcessTrainer, group: Group, checkpoint: Checkpoint, store: Store) -> dict[str, float]:
    """One update by this rank, and a look whether all ranks that should hold the same weights after it do so."""
    figures = trainer.learn(checkpoint, store)
    if trainer.replicas:
        check_replicas(group, trainer.weights())
    return figures
