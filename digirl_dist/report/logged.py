"""What loggers are given: figures under grouped names, episodes as rows, and pictures of some of them."""

from __future__ import annotations

import base64
from contextlib import suppress
from itertools import islice
from pathlib import Path

import numpy as np

from digirl_dist.errors import TrajectoryError
from digirl_dist.plain_text import one_line
from digirl_dist.report.loggers import plain_names
from digirl_dist.report.metrics import Figures
from digirl_dist.report.picture import film
from digirl_dist.storage import parquet
from digirl_dist.trajectory import Trajectory
from digirl_dist.types import Json

_GROUPS = {
    "learning": "success_rate reward_mean reward_max steps_mean entropy episodes policy_version global_step "
    "eval_reward_mean eval_success_rate episode_reward_avg_100 episode_length_avg_100",
    "time": "collect_s push_s update_s overhead_s iteration_s judge_wait_s episode_s_mean",
    "fleet": "emulator_busy collect_busy push_bytes pull_bytes episodes_retried workers_lost set_aside world_size",
    "data": "staleness_mean staleness_max episodes_refused relabelled_share",
}
_GROUP = {name: group for group, names in _GROUPS.items() for name in names.split()}
_NO_CURVES = ("iteration", "time", "purpose", "checkpoint")
_MOST_TASKS = 50
_LARGEST = float(np.finfo(np.float32).max)
"""TensorBoard's curves are of float32."""
_MOST_ROWS = 1000


def tags(figures: Figures) -> dict[str, float]:
    """Returns figures that are numbers of float32 by ``group/name``; what the algorithm adds is ``algorithm/…``."""
    found: dict[tuple[str, ...], Json] = {}
    for name, value in figures.items():
        with suppress(AttributeError, TypeError, ValueError, OverflowError):  # a stranger's: of any kind
            match name:
                case "slot_seconds":
                    found |= {("slots", f"{activity}_s"): seconds for activity, seconds in value.items()}
                case "success_by_task" if len(value) <= _MOST_TASKS:
                    found |= {("tasks", task): won / of for task, (won, of) in value.items() if of}
                case "episodes_by_worker":
                    found["fleet", "workers"] = sum(count > 0 for count in value.values())
                case _ if name not in _NO_CURVES:
                    found[tuple(name.split("/")) if "/" in name else (_GROUP.get(name, "algorithm"), name)] = value
    numbers = {name: value for name, value in found.items() if isinstance(value, int | float)}
    return plain_names({name: float(value) for name, value in numbers.items() if abs(value) <= _LARGEST})


def rows(file: Path, with_pictures: bool) -> list[dict[str, Json]]:
    """Returns a row per episode of an iteration's file, none of one that cannot be read.

    With pictures, it has that of one success and one failure.
    """
    drawn: set[bool] = set() if with_pictures else {True, False}
    found = []
    with suppress(TrajectoryError, OSError):
        for trajectory in islice(parquet.stream(file), _MOST_ROWS):
            row = _row(trajectory)
            if trajectory.success not in drawn and (picture := film(trajectory)) is not None:
                drawn.add(trajectory.success)
                row["picture"] = base64.b64encode(picture).decode()
            found.append(row)
    return found


def _row(trajectory: Trajectory) -> dict[str, Json]:
    ticket = trajectory.ticket
    return {
        "iteration": ticket.iteration,
        "ticket": ticket.index,
        "task": one_line(ticket.task.id),
        "instruction": one_line(ticket.task.instruction),
        "success": trajectory.success,
        "reward": trajectory.reward,
        "steps": len(trajectory.steps),
        "worker": one_line(trajectory.worker),
        "policy_version": ticket.policy_version,
        "episode_id": trajectory.episode_id,
    }
