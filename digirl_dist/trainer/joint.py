"""Updates by all ranks of a launch: rank 0 leads, the others follow its announcements.

Between two updates no rank is inside a collective: the followers wait for an announcement in the launch's key-value
store, so collecting may take any length of time.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from contextlib import suppress

from digirl_dist.errors import PeerError
from digirl_dist.parallel.group import Group
from digirl_dist.storage.checkpoint import Checkpoint
from digirl_dist.storage.refused_episodes import RefusedEpisode
from digirl_dist.storage.trajectory_store import Store
from digirl_dist.trainer import Update
from digirl_dist.trainer.inprocess import InProcessTrainer
from digirl_dist.trainer.one_update import check_replicas

_STOP = "stop"


class JointTrainer:
    """Trains on rank 0: every rank makes each update, and rank 0 saves it.

    Ranks that broke off in an update cannot look for what broke it. The next launch does, at its start: rank 0 makes
    that update with a trainer without peers, which ``alone`` returns, while the others wait.
    """

    def __init__(
        self, trainer: InProcessTrainer, group: Group, store: Store, alone: Callable[[], InProcessTrainer]
    ) -> None:
        self._trainer = trainer
        self._group = group
        self._store = store
        self._alone = alone
        self._refused: tuple[RefusedEpisode, ...] = ()
        self._stopped = False

    def resume(self) -> Checkpoint:
        newest = self._trainer.resume()
        if self._store.refused.is_suspect(newest.iteration):
            self._refused = self._sifted()
        return newest

    def update(self, checkpoint: Checkpoint, store: Store) -> Update:
        started_at = time.monotonic()
        self._group.announce(str(checkpoint.iteration))
        self._trainer.follow(checkpoint.iteration)
        figures = _learn(self._trainer, self._group, checkpoint, store)
        learned_at = time.monotonic()
        refused, self._refused = self._refused, ()
        figures["episodes_refused"] = float(len(refused))
        return Update(self._trainer.save(checkpoint.iteration + 1, figures), figures, started_at, learned_at, refused)

    def close(self) -> None:
        """Releases the other ranks. Idempotent."""
        if not self._stopped:
            self._stopped = True
            self._group.announce(_STOP)

    def _sifted(self) -> tuple[RefusedEpisode, ...]:
        """Sets aside what breaks the update of the newest checkpoint, and returns it."""
        refused = self._store.refused
        before = refused.all()
        refused.clear()
        with suppress(Exception):  # whatever else is wrong, all ranks meet it next, and say so
            alone = self._alone()
            alone.learn(alone.resume(), self._store)
        return tuple(episode for episode in refused.all() if episode not in before)


def follow(trainer: InProcessTrainer, group: Group, store: Store, idle_s: float) -> None:
    """Repeats rank 0's updates on every other rank until rank 0 announces the end.

    Reads checkpoints and trajectories from the run folder, which several nodes must share. Raises PeerError if rank 0
    announces nothing for ``idle_s``.
    """
    while (order := group.announced(idle_s)) != _STOP:
        _learn(trainer, group, trainer.follow(int(order)), store)


def _learn(trainer: InProcessTrainer, group: Group, checkpoint: Checkpoint, store: Store) -> dict[str, float]:
    """Makes this rank's part of an update, then checks that all replicas of the weights are equal.

    One that fails here is remembered in the run folder, so that the next launch begins by sifting.
    """
    try:
        figures = trainer.learn(checkpoint, store)
        if trainer.replicas:
            check_replicas(group, trainer.weights())
    except PeerError:
        raise  # another rank failed, or was ended
    except Exception:
        with suppress(OSError):  # several ranks write it, and the error is worth more
            store.refused.suspect(checkpoint.iteration)
        raise
    return figures
