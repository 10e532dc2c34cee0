"""Makes one evaluation job: a run with ``task_mode=evaluate`` in a folder of its own."""

from __future__ import annotations

import math
import random
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
import torch

from digirl_dist.assembly import run
from digirl_dist.evaluate.jobs import EvalJob
from digirl_dist.report.metrics import results
from digirl_dist.report.output import shown
from digirl_dist.storage import json_lines, parquet
from digirl_dist.storage.trajectory_store import Store
from digirl_dist.tasks import Round
from digirl_dist.trajectory import Trajectory
from digirl_dist.types import Json

_MARGIN = 1.25
"""Rounds that a run makes, as a multiple of those that episodes of the length so far would need."""
_FIGURES = ("episodes", "success_rate", "reward_mean", "reward_max", "steps_mean")
"""Those of ``metrics.jsonl`` that describe episodes."""


@dataclass(frozen=True)
class Measured:
    """The metrics of a job's episodes; ``missing`` says which of them failed again and again, and why."""

    metrics: dict[str, Json]
    missing: str = ""


def measure(job: EvalJob, device: str, folder: Path, dataset: Path) -> Measured:
    """Runs the job with its policy on ``device`` in the run folder ``folder``, and writes its episodes to ``dataset``.

    Continues what an interrupted evaluation left in ``folder``. A job shares no state with others and ignores their
    order. Raises CollectionError if no episode succeeds in running at all, FolderInUseError if another process has
    the folder.
    """
    rounds = 1
    while True:
        settings = job.settings(folder, device, rounds)
        with _own_randomness(job.seed), shown("measure", None) as progress:
            run.measure(settings, progress)
        found = _episodes(folder, rounds)
        steps = sum(len(episode.steps) for episode in found)
        if job.num_steps is None or steps >= job.num_steps:
            break
        rounds = max(rounds + 1, math.ceil(_MARGIN * rounds * job.num_steps / steps))
    lacking = rounds * settings.rollout_size - len(found)
    found = _until(found, job.num_steps)
    parquet.write(dataset, found)
    figures = results(0, found)
    metrics = {"checkpoint": job.checkpoint or 0, **{name: figures[name] for name in _FIGURES}}
    if not lacking:
        return Measured(metrics)
    wanted = "" if job.num_episodes is None else f" of {job.num_episodes}"
    return Measured(metrics, f"{len(found)}{wanted} episodes; set aside: {'; '.join(_set_aside(folder))}")


@contextmanager
def _own_randomness(seed: int) -> Iterator[None]:
    """Policies that draw from the generators of the process draw the same whatever jobs came before."""
    before = random.getstate(), np.random.get_state()
    with torch.random.fork_rng():
        torch.manual_seed(seed)
        np.random.seed(seed % 2**32)
        random.seed(seed)
        try:
            yield
        finally:
            random.setstate(before[0])
            np.random.set_state(before[1])


def _episodes(folder: Path, rounds: int) -> list[Trajectory]:
    """Returns the episodes of the run, numbered in the order of their tickets, whichever slot was faster."""
    store = Store(folder / "trajectories")
    found = [store.landed(Round(number, "measure", 0)) for number in range(rounds)]
    ordered = [episodes[key] for episodes in found for key in sorted(episodes)]
    return [
        replace(episode, ticket=replace(episode.ticket, iteration=0, index=index))
        for index, episode in enumerate(ordered)
    ]


def _until(episodes: list[Trajectory], num_steps: int | None) -> list[Trajectory]:
    """Returns the first episodes that have ``num_steps`` steps in total; None: all."""
    if num_steps is None:
        return episodes
    totals = np.cumsum([len(episode.steps) for episode in episodes])
    return episodes[: 1 + int(np.searchsorted(totals, num_steps))]


def _set_aside(folder: Path) -> list[str]:
    """Returns why tickets of the run were set aside at last, of those that have no episode."""
    events = json_lines.read(folder / "events.jsonl")
    ends = (event for event in events if event["event"] in ("ticket_set_aside", "episode"))
    last = {(event.get("iteration"), event["ticket"]): event.get("reason") for event in ends}
    return list(dict.fromkeys(f"episode {ticket}: {reason}" for (_, ticket), reason in last.items() if reason))
