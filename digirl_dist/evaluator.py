"""Measures checkpoints on the test split while training goes on, and says which was best."""

from __future__ import annotations

from dataclasses import dataclass, replace

from digirl_dist.checkpoint import Checkpoint, Checkpoints
from digirl_dist.collect import Collector
from digirl_dist.report.report import Report
from digirl_dist.store import Store
from digirl_dist.tasks import Plan, Ticket, evaluation_of


@dataclass(frozen=True)
class Evaluator:
    """Every ``every``-th checkpoint, the first and the ``last`` are measured on the same tickets; none if 0."""

    collector: Collector
    plan: Plan
    store: Store
    checkpoints: Checkpoints
    report: Report
    every: int
    last: int

    def look_at(self, checkpoint: Checkpoint) -> None:
        """Measure it if it is its turn and was not measured before. Harmless when repeated."""
        if not self._due(checkpoint.iteration) or self.report.has_evaluation(checkpoint):
            return
        harvest = self.collector.collect(checkpoint, self._tickets(checkpoint.iteration))
        self.store.append(harvest)
        success_rate = self.report.evaluation(harvest, checkpoint)
        self.checkpoints.rate(checkpoint, success_rate)

    def _due(self, iteration: int) -> bool:
        return self.every > 0 and (iteration % self.every == 0 or iteration == self.last)

    def _tickets(self, version: int) -> list[Ticket]:
        """The same tasks and seeds for every checkpoint, so that differences come from the policy."""
        tickets = self.plan.tickets(0, version)
        return [replace(ticket, iteration=evaluation_of(version)) for ticket in tickets]
