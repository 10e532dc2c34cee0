"""Averages over the episodes of all ranks."""

from __future__ import annotations

from collections import deque
from typing import Any

import torch

from digirl_dist.parallel.group import Group

WINDOW = 100


class EpisodeWindow:
    """Keeps return and length of this rank's newest 100 episodes, and averages them over all ranks."""

    def __init__(self) -> None:
        self._episodes: deque[tuple[float, int]] = deque(maxlen=WINDOW)

    def add(self, reward: float, length: int) -> None:
        """Adds an episode: its undiscounted return, and its length in steps."""
        self._episodes.append((reward, length))

    def averages(self, group: Group) -> dict[str, float]:
        """Returns means over the windows of all ranks, nothing while they are empty. Every rank must call it."""
        rewards = sum(reward for reward, _ in self._episodes)
        lengths = sum(length for _, length in self._episodes)
        sums = group.sum(torch.tensor([rewards, lengths, len(self._episodes)], dtype=torch.float64)).tolist()
        if not sums[2]:
            return {}
        return {"episode_reward_avg_100": sums[0] / sums[2], "episode_length_avg_100": sums[1] / sums[2]}

    def state(self) -> list[list[float]]:
        """Returns the episodes as JSON values, oldest first."""
        return [[reward, length] for reward, length in self._episodes]

    def load_state(self, state: Any) -> None:
        """Adds the episodes that ``state`` returned."""
        self._episodes.extend((reward, int(length)) for reward, length in state)
