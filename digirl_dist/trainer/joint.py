"""Updates by all ranks of a launch: rank 0 leads, the others follow its announcements.

Between two updates no rank is inside a collective: the followers wait for an announcement in the launch's key-value
store, so collecting may take any length of time.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from contextlib import suppress

from digirl_dist.parallel.group import Group
from digirl_dist.storage.checkpoint import Checkpoint
from digirl_dist.storage.refused_episodes import RefusedEpisode
from digirl_dist.storage.trajectory_store import Store
from digirl_dist.trainer import Update
from digirl_dist.trainer.inprocess import InProcessTrainer
from digirl_dist.trainer.replicas import check_replicas

_STOP = "stop"

TrainerFactory = Callable[[Group], InProcessTrainer]
Sift = Callable[[], tuple[RefusedEpisode, ...]]
"""Sets aside what broke the newest checkpoint's update, if it was broken, and returns it."""


class JointTrainer:
    """Trains on rank 0: every rank makes each update, and rank 0 saves it. The others wait while it sifts."""

    def __init__(self, trainer: TrainerFactory, group: Group, sift: Sift = tuple) -> None:
        self._trainer = trainer(group)
        self._group = group
        self._sift = sift
        self._refused: tuple[RefusedEpisode, ...] = ()
        self._stopped = False

    def resume(self) -> Checkpoint:
        self._refused = self._sift()
        return self._trainer.resume()

    def update(self, checkpoint: Checkpoint, store: Store) -> Update:
        started_at = time.monotonic()
        self._group.announce(str(checkpoint.iteration))
        self._trainer.follow(checkpoint.iteration)
        figures = _learn(self._trainer, self._group, checkpoint, store)
        learned_at = time.monotonic()
        refused, self._refused = self._refused, ()
        figures["episodes_refused"] = float(len(refused))
        saved = self._trainer.save(checkpoint.iteration + 1, figures)
        return Update(saved, figures, started_at, learned_at, refused)

    def close(self) -> None:
        """Releases the other ranks. Idempotent."""
        if not self._stopped:
            self._stopped = True
            self._group.announce(_STOP)


def follow(trainer: TrainerFactory, group: Group, store: Store, idle_s: float) -> None:
    """Repeats rank 0's updates on every other rank until rank 0 announces the end.

    Reads checkpoints and trajectories from the run folder, which several nodes must share. Raises PeerError if rank 0
    announces nothing for ``idle_s``.
    """
    own = trainer(group)
    while (order := group.announced(idle_s)) != _STOP:
        _learn(own, group, own.follow(int(order)), store)


def _learn(trainer: InProcessTrainer, group: Group, checkpoint: Checkpoint, store: Store) -> dict[str, float]:
    """Makes this rank's part of an update, then checks that all replicas of the weights are equal.

    One that fails is remembered in the run folder, so that the next start of the run begins by sifting.
    """
    try:
        figures = trainer.learn(checkpoint, store)
        if trainer.replicas:
            check_replicas(group, trainer.weights())
    except Exception:
        with suppress(OSError):  # several ranks write it, and the error is worth more
            store.refused.suspect(checkpoint.iteration)
        raise
    return figures
