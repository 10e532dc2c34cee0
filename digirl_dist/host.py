"""The host's loop, from the first checkpoint to the last.

The host pushes the checkpoint to the workers, lets them collect, pulls their trajectories, learns, and starts the next
iteration. The collector decides where episodes run, the trainer how an update is made, and the report what people see.
The state of a run is its newest checkpoint and its store, so the same command continues a run that was interrupted at
any point.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

from digirl_dist.collect import Collector
from digirl_dist.report.report import Report
from digirl_dist.storage.checkpoint import Checkpoint, Checkpoints
from digirl_dist.storage.trajectory_store import Store
from digirl_dist.tasks import Plan, Ticket
from digirl_dist.trainer import Trainer


@dataclass(frozen=True)
class Evaluator:
    """Measures every ``every``-th checkpoint, the first and the ``last`` on the same tickets; none if 0."""

    collector: Collector
    plan: Plan
    store: Store
    checkpoints: Checkpoints
    report: Report
    every: int
    last: int

    def look_at(self, checkpoint: Checkpoint) -> None:
        """Measures the checkpoint if it is due and was not measured before. Repeating the call is harmless."""
        if not self._due(checkpoint.iteration):
            return
        rating = self.report.rating(checkpoint)
        if rating is None:
            result = self.collector.collect(checkpoint, self._tickets(checkpoint.iteration))
            self.store.append(result)
            rating = self.report.evaluation(result, checkpoint)
        self.checkpoints.rate(checkpoint, *rating)  # also after a crash between these two

    def _due(self, iteration: int) -> bool:
        return self.every > 0 and (iteration % self.every == 0 or iteration == self.last)

    def _tickets(self, version: int) -> list[Ticket]:
        """Returns the same tasks and seeds for every checkpoint, so that differences come from the policy."""
        return [replace(ticket, iteration=version) for ticket in self.plan.tickets(0, version)]


def train(
    collector: Collector,
    trainer: Trainer,
    store: Store,
    plan: Plan,
    evaluator: Evaluator,
    report: Report,
    iterations: int,
    ahead: int = 0,
) -> None:
    """Trains until ``iterations`` updates have been made; for offline learning, the collector returns no episodes.

    Slots that are idle begin with the tickets of up to ``ahead`` iterations more, so the policy of an episode is at
    most so many updates older than the iteration that it counts in.
    """
    checkpoint = trainer.resume()
    report.resumed(checkpoint, store, iterations)
    evaluator.look_at(checkpoint)
    while checkpoint.iteration < iterations:
        begun = [plan.tickets(number, checkpoint.iteration) for number in under_way(checkpoint, ahead, iterations)]
        for tickets in begun:
            collector.begin(checkpoint, tickets)
        result = collector.collect(checkpoint, begun[0])
        store.append(result)
        update = trainer.update(checkpoint, store)
        report.iteration(result, update)
        checkpoint = update.checkpoint
        evaluator.look_at(checkpoint)


def under_way(checkpoint: Checkpoint, ahead: int, iterations: int) -> range:
    """Returns the iterations that are collected at the same time, the one that is learned from next before others."""
    return range(checkpoint.iteration, min(checkpoint.iteration + ahead + 1, iterations))


def evaluate(
    collector: Collector, checkpoint: Checkpoint, store: Store, plan: Plan, report: Report, iterations: int
) -> None:
    """Measures ``checkpoint`` over ``iterations`` rounds of the plan, without learning."""
    for iteration in range(iterations):
        result = collector.collect(checkpoint, plan.tickets(iteration, checkpoint.iteration))
        store.append(result)
        report.evaluation(result, checkpoint)
