"""Rows of a table without an episode around them."""

from __future__ import annotations

from digirl_dist.algorithm.table import KEPT, Row
from digirl_dist.tasks import Task, Ticket
from digirl_dist.trajectory import Observation, Step, Trajectory
from digirl_dist.types import Json


def row_of(seen: Observation, action: Json, weight: float = 1.0) -> Row:
    step = Step(seen, action, -1.0, 1.0, True, False)
    episode = Trajectory(Ticket(0, 0, Task("t"), 0, 0), "e", "w", 0, [step], Observation(), True)
    return Row(episode, 0, KEPT, "", weight)
