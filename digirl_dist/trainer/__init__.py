"""Trainers: the interface for updates, from the store's trajectories to the next checkpoint."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Protocol

from digirl_dist.storage.checkpoint import Checkpoint
from digirl_dist.storage.refused_episodes import RefusedEpisode
from digirl_dist.storage.trajectory_store import Store


@dataclass(frozen=True)
class Update:
    """One update: the new checkpoint, the algorithm's figures, and when learning began and ended in monotonic s."""

    checkpoint: Checkpoint
    figures: dict[str, float] = field(default_factory=dict)
    started_at: float = 0.0
    learned_at: float = 0.0
    refused: tuple[RefusedEpisode, ...] = ()
    """Episodes that broke the update, which was then made without them."""


class Trainer(Protocol):
    """Owns the agent that learns, its algorithm and its checkpoints."""

    def resume(self) -> Checkpoint:
        """Returns the newest checkpoint, or a first one with fresh weights. Raises CheckpointError on a misfit."""

    def update(self, checkpoint: Checkpoint, store: Store) -> Update:
        """Learns from the store's trajectories up to ``checkpoint.iteration`` and saves the next checkpoint."""

    def close(self) -> None:
        """Releases all resources. Idempotent."""
