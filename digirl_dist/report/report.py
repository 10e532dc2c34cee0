"""Tells people and programs how the run goes: progress, metrics, TensorBoard, the report page, a summary."""

from __future__ import annotations

import time
from collections.abc import Sequence

from digirl_dist.checkpoint import Checkpoint
from digirl_dist.events import Events
from digirl_dist.harvest import Harvest
from digirl_dist.report.metrics import Figures, Metrics, collection, overhead_s, results
from digirl_dist.report.page import write_page
from digirl_dist.report.progress import Progress
from digirl_dist.report.tensorboard import Curves
from digirl_dist.run_folder import RunFolder
from digirl_dist.status import Status
from digirl_dist.store import Store
from digirl_dist.train import Update

_PAGE_EVERY_S = 30.0


class Report:
    """What the loop tells of itself."""

    def __init__(self, folder: RunFolder, events: Events, progress: Progress, status: Status) -> None:
        self._folder = folder
        self._events = events
        self._progress = progress
        self._status = status
        self._metrics = Metrics(folder.metrics)
        self._curves = Curves(folder.tensorboard)
        self._before: Update | None = None
        self._page_at = 0.0

    def resumed(self, checkpoint: Checkpoint, store: Store, iterations: int) -> None:
        """Bring the metrics to where the checkpoint is, whatever a crash left of them."""
        self._metrics.keep_until(checkpoint.iteration)
        known = {line["iteration"] for line in self._metrics.lines}
        for iteration in range(checkpoint.iteration):
            if iteration not in known:
                self._metrics.append(results(iteration, store.read(iteration)))
        self._events.emit("run_started", iteration=checkpoint.iteration)
        if checkpoint.iteration >= iterations:
            self._progress.say(f"{self._folder.root} has its {iterations} iterations; set a larger train_iterations")
        elif checkpoint.iteration:
            self._progress.say(f"continuing at iteration {checkpoint.iteration} of {self._folder.root}")

    def iteration(self, harvest: Harvest, update: Update) -> None:
        figures: Figures = {
            **results(harvest.iteration, harvest.trajectories),
            **collection(harvest),
            "update_s": round(update.learned_at - update.started_at, 4),
            "overhead_s": overhead_s(harvest, self._before),
            "iteration_s": round(time.monotonic() - harvest.started_at, 4),
            **update.figures,
        }
        self._before = update
        self._metrics.append(figures)
        self._curves.add(figures, harvest.iteration)
        self._progress.iteration(figures)
        if time.monotonic() - self._page_at > _PAGE_EVERY_S:
            self._write_page()

    def evaluation(self, harvest: Harvest, checkpoint: Checkpoint) -> None:
        """A round that measured ``checkpoint``; its line goes to ``evaluation.jsonl``."""
        figures = {"checkpoint": checkpoint.iteration, **results(harvest.iteration, harvest.trajectories)}
        Metrics(self._folder.root / "evaluation.jsonl").append(figures)
        self._progress.evaluation(figures)

    def close(self) -> None:
        """Write the page and print the summary, also of a run that was interrupted."""
        self._status.host("nothing: the run was ended in order")
        self._progress.close()
        self._curves.close()
        if self._before is not None:
            self._write_page()
            _print_summary(self._metrics.lines)
        self._events.emit("run_ended", iterations=len(self._metrics.lines))

    def _write_page(self) -> None:
        write_page(self._folder.root)
        self._page_at = time.monotonic()


def _print_summary(lines: Sequence[Figures], most: int = 12) -> None:
    """The last iterations as a table."""
    columns = {
        "iteration": "iteration",
        "episodes": "episodes",
        "success": "success_rate",
        "reward": "reward_mean",
        "collect s": "collect_s",
        "update s": "update_s",
        "overhead s": "overhead_s",
        "busy": "emulator_busy",
        "retried": "episodes_retried",
    }
    rows = [list(columns), *([_short(line.get(key)) for key in columns.values()] for line in lines[-most:])]
    if len(lines) > most:
        print(f"the last {most} of {len(lines)} iterations:")
    for row in rows:
        print(" ".join(value.rjust(len(title)) for title, value in zip(columns, row, strict=True)))


def _short(value: object) -> str:
    return "-" if value is None else f"{value:.2f}" if isinstance(value, float) else str(value)
