"""The loop: what the host does, from the first checkpoint to the last.

Push the checkpoint to the workers, let them collect, pull their trajectories, learn, and again. Where episodes run is
the collector's business, how an update is made the trainer's, and what is told to people the report's. The state of a
run is its newest checkpoint and its store, so the same command continues a run that was interrupted at any point.
"""

from __future__ import annotations

from digirl_dist.checkpoint import Checkpoint
from digirl_dist.collect import Collector
from digirl_dist.evaluator import Evaluator
from digirl_dist.report.report import Report
from digirl_dist.store import Store
from digirl_dist.tasks import Plan
from digirl_dist.train import Trainer


def train(
    collector: Collector,
    trainer: Trainer,
    store: Store,
    plan: Plan,
    evaluator: Evaluator,
    report: Report,
    iterations: int,
) -> None:
    """Train until ``iterations`` updates have been made; a collector for offline learning brings nothing home."""
    checkpoint = trainer.resume()
    report.resumed(checkpoint, store, iterations)
    evaluator.look_at(checkpoint)
    while checkpoint.iteration < iterations:
        harvest = collector.collect(checkpoint, plan.tickets(checkpoint.iteration, checkpoint.iteration))
        store.append(harvest)
        update = trainer.update(checkpoint, store)
        report.iteration(harvest, update)
        checkpoint = update.checkpoint
        evaluator.look_at(checkpoint)


def evaluate(
    collector: Collector, checkpoint: Checkpoint, store: Store, plan: Plan, report: Report, iterations: int
) -> None:
    """Measure ``checkpoint`` over ``iterations`` rounds of the plan, without learning."""
    for iteration in range(iterations):
        harvest = collector.collect(checkpoint, plan.tickets(iteration, checkpoint.iteration))
        store.append(harvest)
        report.evaluation(harvest, checkpoint)
