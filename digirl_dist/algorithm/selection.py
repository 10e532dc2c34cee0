"""Which trajectories are learned from, and how much each of their tasks weighs."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence

import numpy as np


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


def task_weights(tasks: Sequence[str]) -> list[float]:
    """1 / sqrt(how often the task occurs), so that tasks solved often do not drown those solved seldom."""
    counts = Counter(tasks)
    return [float(counts[task] ** -0.5) for task in tasks]
