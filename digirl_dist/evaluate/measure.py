"""Runs the episodes of one evaluation job."""

from __future__ import annotations

import random
import shutil
from collections.abc import Iterator, Sequence
from contextlib import closing, contextmanager
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
import torch

from digirl_dist.agent import AgentFactory, contract
from digirl_dist.agent.placement import Placed
from digirl_dist.assembly.collector import inline_collector
from digirl_dist.assembly.parts import build_agent, build_device
from digirl_dist.collect import Collector
from digirl_dist.collect.iteration import Closing
from digirl_dist.evaluate.jobs import EvalJob
from digirl_dist.report.metrics import results
from digirl_dist.storage import parquet
from digirl_dist.storage.checkpoint import Checkpoint, Checkpoints
from digirl_dist.storage.events import Events
from digirl_dist.storage.status import Status
from digirl_dist.storage.trajectory_store import Store
from digirl_dist.tasks import Plan
from digirl_dist.trajectory import Trajectory
from digirl_dist.types import Json


@dataclass(frozen=True)
class Measured:
    """The metrics of a job's episodes; ``missing`` says which of them failed again and again, and why."""

    metrics: dict[str, Json]
    missing: str = ""


def measure(job: EvalJob, device: str, work: Path, dataset: Path) -> Measured:
    """Runs the job with its policy on ``device``, and writes its episodes to ``dataset``.

    ``work`` keeps the progress of an interrupted job. A job shares no state with others and ignores their order. Raises
    CollectionError if no episode succeeds in running at all.
    """
    settings = job.settings()
    emulator = build_device(settings, settings.emulator)
    agent = build_agent(settings, emulator.spec)
    checkpoint = _checkpoint(job, agent, work)
    size = job.num_episodes or (settings.bsize if isinstance(settings.bsize, int) else 1)
    plan = Plan(emulator.tasks, size, job.seed, settings.task_order.value, share="test")
    events = Events(work / "events.jsonl")
    store = Store(work / "trajectories")
    status = Status(work / "status.json")
    collector = inline_collector(settings, emulator, Placed(agent, device), store, events, status, Closing())
    with _own_randomness(job.seed), closing(events), closing(collector):
        episodes, aside = _episodes(job, collector, plan, checkpoint, store)
    parquet.write(dataset, episodes)
    metrics = _metrics(episodes, checkpoint)
    if not aside:
        shutil.rmtree(work)
        return Measured(metrics)
    wanted = "" if job.num_episodes is None else f" of {job.num_episodes}"
    return Measured(metrics, f"{len(episodes)}{wanted} episodes; set aside: {'; '.join(aside)}")


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


def _episodes(
    job: EvalJob, collector: Collector, plan: Plan, checkpoint: Checkpoint, store: Store
) -> tuple[Sequence[Trajectory], Sequence[str]]:
    """Returns the episodes of the first ``num_episodes`` tickets, or of as many as have ``num_steps`` in total, and the
    tickets that failed too often, with the reasons.

    The order is that of the tickets, so the result does not depend on which slot was faster.
    """
    found: list[Trajectory] = []
    aside: list[str] = []
    rounds = 0
    while not _enough(job, found, aside):
        result = collector.collect(checkpoint, plan.tickets(rounds, checkpoint.iteration))
        store.append(result)
        for episode in result.trajectories:
            if not _enough(job, found, aside):
                # A round is not an iteration of the run, so the dataset numbers its episodes consecutively.
                found.append(replace(episode, ticket=replace(episode.ticket, iteration=0, index=len(found))))
        rounds += 1
        aside += result.set_aside
    return found, aside


def _enough(job: EvalJob, found: Sequence[Trajectory], aside: Sequence[str]) -> bool:
    if job.num_episodes is not None:
        return len(found) + len(aside) >= job.num_episodes
    assert job.num_steps is not None
    return sum(len(episode.steps) for episode in found) >= job.num_steps


def _checkpoint(job: EvalJob, agent: AgentFactory, work: Path) -> Checkpoint:
    """Returns the job's checkpoint of its run folder, or a fresh one. Raises CheckpointError if there is none."""
    trained = job.trained()
    if trained is not None:
        return job.checkpoints.open(trained)
    fresh = Checkpoints(work / "checkpoints")
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(job.seed)
        return fresh.newest() or fresh.save(0, contract.state_of(agent()), {}, {})


def _metrics(episodes: Sequence[Trajectory], checkpoint: Checkpoint) -> dict[str, Json]:
    """Returns those figures of ``metrics.jsonl`` that describe episodes."""
    figures = results(0, episodes)
    kept = ("episodes", "success_rate", "reward_mean", "reward_max", "steps_mean")
    return {"checkpoint": checkpoint.iteration, **{name: figures[name] for name in kept}}
