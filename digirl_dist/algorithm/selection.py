"""Which trajectories and steps are learned from, which only measure, and how much each task weighs."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence

import numpy as np

from digirl_dist.storage.digest import digest
from digirl_dist.trajectory import Observation, Trajectory


def best(scores: np.ndarray, share: float, above: float) -> list[int]:
    """Indices of the best ``share`` of ``scores`` (at least one) that lie strictly above ``above``.

    Whoever ties with the last of them is kept too: of 0/1 rewards with successes in more than ``share`` of all
    trajectories, all successes are.
    """
    if len(scores) == 0:
        return []
    rank = max(1, round(share * len(scores)))
    threshold = np.sort(scores)[-rank]
    return [int(index) for index in np.flatnonzero((scores >= threshold) & (scores > above))]


def top_quantile(scores: np.ndarray, share: float) -> list[int]:
    """Indices of the ``scores`` [N] at or above their (1 − ``share``) quantile, which is interpolated linearly.

    The filter of DigiRL's released code (``filter_buffer`` in its off-policy training loop), with share 0.1.
    """
    if len(scores) == 0:
        return []
    return [int(index) for index in np.flatnonzero(scores >= np.quantile(scores, 1 - share))]


def task_weights(tasks: Sequence[str]) -> list[float]:
    """1 / sqrt(how often the task occurs), so that tasks solved often do not drown those solved seldom."""
    counts = Counter(tasks)
    return [float(counts[task] ** -0.5) for task in tasks]


def held_out(episode: Trajectory, share: float) -> bool:
    """Whether an episode is among the ``share`` of all that train nothing and only measure.

    Follows from iteration and ticket, so an episode stays on its side without any memory, also after a resume.
    """
    ticket = episode.ticket
    return int(digest(f"{ticket.iteration}/{ticket.index}".encode())[:8], 16) < share * 2**32


def changed_something(trajectory: Trajectory) -> list[bool]:
    """Of each step, whether it was rewarded or what was seen after it differs from what was seen before."""
    seen = [*(step.observation for step in trajectory.steps), trajectory.final_observation]
    pairs = zip(trajectory.steps, seen[1:], strict=True)
    return [step.reward != 0 or not _alike(step.observation, after) for step, after in pairs]


def _alike(one: Observation, other: Observation) -> bool:
    """Texts count only where nothing else was seen: with some agents they tell of the actions before."""
    if one.image is None and one.vector is None:
        return one.text == other.text
    return one.image == other.image and np.array_equal(
        one.vector if one.vector is not None else (), other.vector if other.vector is not None else ()
    )
