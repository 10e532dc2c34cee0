"""``metrics.jsonl``: one line of figures per iteration, each iteration once."""

from __future__ import annotations

import json
import os
import time
from collections import Counter
from collections.abc import Mapping, Sequence
from pathlib import Path

from digirl_dist import durable
from digirl_dist.harvest import Harvest
from digirl_dist.slot_time import ACTIVITIES
from digirl_dist.tasks import Json
from digirl_dist.train import Update
from digirl_dist.trajectory import Trajectory

Figures = dict[str, Json]


class Metrics:
    """The metrics file of a run folder."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.lines: list[Figures] = list(_whole_lines(path))

    def keep_until(self, iteration: int) -> None:
        """Forget lines of iterations that a crash made undone, and a line that was cut in the middle."""
        self.lines = [line for line in self.lines if line["iteration"] < iteration]
        durable.write_text(self.path, "".join(json.dumps(line) + "\n" for line in self.lines))

    def append(self, figures: Figures) -> None:
        self.lines.append(figures)
        with self.path.open("a") as file:
            file.write(json.dumps(figures) + "\n")
            file.flush()
            os.fsync(file.fileno())


def results(iteration: int, trajectories: Sequence[Trajectory]) -> Figures:
    """What the episodes came to. Rewards are undiscounted returns."""
    rewards = [trajectory.reward for trajectory in trajectories]
    return {
        "iteration": iteration,
        "time": round(time.time(), 3),
        "policy_version": max((trajectory.ticket.policy_version for trajectory in trajectories), default=None),
        "episodes": len(trajectories),
        "success_rate": _mean([float(trajectory.success) for trajectory in trajectories]),
        "reward_mean": _mean(rewards),
        "reward_max": max(rewards, default=None),
        "steps_mean": _mean([float(len(trajectory.steps)) for trajectory in trajectories]),
    }


def collection(harvest: Harvest) -> Figures:
    """What collecting took: seconds, bytes, and what went wrong."""
    return {
        "collect_s": round(harvest.ended_at - harvest.started_at, 4),
        "push_s": round(max((outcome.push_s for outcome in harvest.outcomes), default=0.0), 4),
        "push_bytes": sum(outcome.push_bytes for outcome in harvest.outcomes),
        "pull_bytes": sum(outcome.pull_bytes for outcome in harvest.outcomes),
        "emulator_busy": None if harvest.busy is None else round(harvest.busy, 4),
        "episodes_retried": sum(outcome.retried for outcome in harvest.outcomes),
        "workers_lost": sum(len(outcome.losses) for outcome in harvest.outcomes),
        "slot_seconds": _added([outcome.slot_seconds for outcome in harvest.outcomes]),
        "slot_seconds_by_worker": {outcome.worker: _rounded(outcome.slot_seconds) for outcome in harvest.outcomes},
        "episodes_by_worker": {outcome.worker: outcome.episodes for outcome in harvest.outcomes},
    }


def overhead_s(harvest: Harvest, before: Update | None) -> float | None:
    """Seconds in which neither emulators nor the update were at work.

    From the end of the update before to the first action in every slot, plus from the end of the last episode until
    all of them are in the store. None for the first iteration of a process, which starts everything from cold.
    """
    if before is None or None in (harvest.acting_at, harvest.last_ended_at, harvest.stored_at):
        return None
    assert harvest.acting_at is not None and harvest.last_ended_at is not None and harvest.stored_at is not None
    return round(harvest.acting_at - before.learned_at + harvest.stored_at - harvest.last_ended_at, 4)


def _added(parts: Sequence[dict[str, float]]) -> dict[str, float]:
    total: Counter[str] = Counter()
    for part in parts:
        total.update(part)
    return _rounded(total)


def _rounded(seconds: Mapping[str, float]) -> dict[str, float]:
    return {activity: round(seconds[activity], 4) for activity in ACTIVITIES if activity in seconds}


def _mean(values: Sequence[float]) -> float | None:
    return sum(values) / len(values) if values else None


def _whole_lines(path: Path) -> list[Figures]:
    lines = path.read_text().splitlines(keepends=True) if path.exists() else []
    return [json.loads(line) for line in lines if line.endswith("\n")]
