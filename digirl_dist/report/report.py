"""Reports a run to people and programs: progress, metrics, curves, the report page, a summary."""

from __future__ import annotations

import shlex
import shutil
import time
from collections import Counter
from dataclasses import asdict, replace

from digirl_dist.collection import CollectionResult
from digirl_dist.emulator.starts import unlike_starts
from digirl_dist.errors import DigirlDistError
from digirl_dist.plain_text import one_line
from digirl_dist.report.bundle import PAGE_BYTES, write_report
from digirl_dist.report.follower import Followers
from digirl_dist.report.media import Media
from digirl_dist.report.metrics import (
    Figures,
    Metrics,
    Outcomes,
    collection,
    confidence,
    measured,
    overhead_s,
    results,
    together,
    unread,
)
from digirl_dist.report.progress import Progress
from digirl_dist.report.viewed import ViewedRun
from digirl_dist.storage.checkpoint import Checkpoint
from digirl_dist.storage.disk_full import WritePolicy
from digirl_dist.storage.events import Events
from digirl_dist.storage.run_folder import RunFolder
from digirl_dist.storage.status import RunState
from digirl_dist.storage.trajectory_store import Store
from digirl_dist.trainer import Update

_PAGE_EVERY_S = 30.0
_PAGE_PAUSE = 50.0
"""The page is of all iterations, so it takes longer with each: pauses are at least so many times as long."""


_MANY_UNREAD = 0.2
"""Share of unread answers from which on they are reported."""
_LARGE_MISMATCH = 0.05
"""In nats per token: from here on, differences of the policies are reported."""
_LONGEST_REASON = 200


class Report:
    """Reports the loop's progress."""

    def __init__(
        self,
        folder: RunFolder,
        events: Events,
        progress: Progress,
        log: Followers,
        media: Media,
        write_policy: WritePolicy,
        steady: bool = True,
    ) -> None:
        """``steady`` is that of the emulator's spec."""
        self._folder = folder
        self._events = events
        self._progress = progress
        self._status = progress.status
        self._media = media
        self._write_policy = write_policy
        self._metrics = Metrics(folder.metrics, write_policy)
        self._evaluations = Metrics(folder.evaluations, write_policy)
        self._log = log
        self._outcomes = Outcomes(progress.tells_success, self._metrics)
        self._steady = steady
        self._unlike: set[str] = set()
        """Tasks of which episodes that should have started alike did not, once that was reported."""
        self._before: Update | None = None
        self._measured_s = 0.0
        """What evaluations have taken since then."""
        self._evaluated: list[CollectionResult] = []
        """Those evaluations, without their episodes."""
        self._viewed: ViewedRun | None = None
        self._page_due_at = 0.0
        self._told_at = 0.0

    def resumed(self, checkpoint: Checkpoint, store: Store, iterations: int) -> None:
        """Makes the metrics agree with the checkpoint, whatever state a crash left them in.

        What checkpoints have left that somebody removed since would count as that of others: it is kept aside.
        """
        measured_of = [line.get("checkpoint", 0) for line in self._evaluations.lines]
        if max(measured_of, default=0) > checkpoint.iteration:
            shutil.copy(self._folder.evaluations, self._folder.evaluations.with_suffix(f".{time.time_ns()}.jsonl"))
            self._evaluations.keep_until(checkpoint.iteration + 1, measured_of)
        if aside := store.leave_beyond(checkpoint.iteration):
            self._progress.say(f"checkpoint {checkpoint.iteration} is the newest; what later ones left is in {aside}")
        self._metrics.make_up_for(checkpoint.iteration, store, self._outcomes)
        self._events.emit("run_started", iteration=checkpoint.iteration)
        self._progress.begin(checkpoint.iteration, iterations)
        self._log.begin()
        self._status.host(None)
        if checkpoint.iteration >= iterations:
            self._progress.say(f"{self._folder.root} has all {iterations} iterations; set a larger train_iterations")
        elif checkpoint.iteration:
            self._progress.say(f"continuing at iteration {checkpoint.iteration} of {self._folder.root}")

    def iteration(self, result: CollectionResult, update: Update) -> None:
        own: Figures = {
            **self._outcomes.checked(results(result.iteration, result.trajectories), result.trajectories),
            **collection(result, self._evaluated),
            "update_s": round(update.learned_at - update.started_at, 4),
            "overhead_s": overhead_s(result, self._before, self._measured_s),
            "iteration_s": round(time.monotonic() - max(result.started_at, self._told_at), 4),
        }
        figures = together(own, update.figures)
        self._tell_refused(update)
        self._before, self._measured_s, self._evaluated = update, 0.0, []
        self._told_at = time.monotonic()
        self._look_at_starts(result)
        self._look_at_policy(result, update)
        self._media.add(result.trajectories)
        self._metrics.append(figures)
        self._log.look()
        self._progress.iteration(figures)
        if time.monotonic() > self._page_due_at:
            self._write_page()
        self._status.host(None)

    def _tell_refused(self, update: Update) -> None:
        for worker, episodes in Counter(one.worker for one in update.refused).items():
            first = next(one for one in update.refused if one.worker == worker)
            if episodes == 1:
                self._events.emit("episode_set_aside", **asdict(first))
            else:
                place = {"worker": worker, "iteration": update.checkpoint.iteration - 1}
                self._events.emit("worker_suspected", episodes=episodes, **place, reason=first.reason)

    def _look_at_starts(self, result: CollectionResult) -> None:
        """Reports once for each task that members of a group started differently."""
        for task, reason in unlike_starts(result.trajectories, self._steady).items():
            if task not in self._unlike:
                self._events.emit("starts_differ", task=task, iteration=result.iteration, reason=reason)
            self._unlike.add(task)

    def _look_at_policy(self, result: CollectionResult, update: Update) -> None:
        """Reports that many answers of a model were no action, or that what acts is not quite what learns."""
        reasons, steps = unread(result.trajectories), sum(len(one.steps) for one in result.trajectories)
        if len(reasons) > _MANY_UNREAD * steps:
            such_as = one_line(Counter(reasons).most_common(1)[0][0])[:_LONGEST_REASON]
            self._events.emit("answers_unread", iteration=result.iteration, answers=len(reasons), such_as=such_as)
        if (mismatch := update.figures.get("mismatch", 0.0)) > _LARGE_MISMATCH:
            self._events.emit("mismatch", iteration=result.iteration, mismatch=round(mismatch, 5))

    def evaluation(self, result: CollectionResult, checkpoint: Checkpoint) -> tuple[float, str]:
        """Reports a measurement of ``checkpoint`` in ``evaluation.jsonl``.

        Returns the figure by which checkpoints compare, and its name: the success rate, or the mean reward where
        nothing tells success. It is the same one through all of a run.
        """
        figures = {
            "checkpoint": checkpoint.iteration,
            **self._outcomes.checked(measured(result.iteration, result.trajectories), result.trajectories),
            "purpose": result.purpose,
            **(confidence(result.trajectories) if self._outcomes.mean_something else {}),
            **result.judging,
        }
        self._measured_s += result.ended_at - result.started_at
        self._evaluated.append(replace(result, trajectories=()))
        compared = figures.keys() - {"time"}
        if not any(all(line.get(key) == figures[key] for key in compared) for line in self._evaluations.lines):
            self._evaluations.append(figures)  # else its episodes were stored before
            self._media.add(result.trajectories)
        self._log.begin()
        self._progress.evaluation(figures)
        self._status.host(None)
        return self._rating(figures)

    def rating(self, checkpoint: Checkpoint) -> tuple[float, str] | None:
        """Returns what ``evaluation`` returned of ``checkpoint``; None unless it was evaluated during training."""
        lines = self._evaluations.lines
        key = ("evaluate", checkpoint.iteration)
        return next((self._rating(line) for line in lines if (line["purpose"], line["iteration"]) == key), None)

    def _rating(self, figures: Figures) -> tuple[float, str]:
        compared_by = "success_rate" if self._progress.tells_success else "reward_mean"
        return float(figures.get(compared_by) or 0.0), compared_by

    def close(self) -> None:
        """Writes the page and prints the summary, even for an interrupted run."""
        self._status.host("end the loggers and write the report")
        self._log.close()
        self._media.close()
        self._write_page()
        self._progress.summary(self._metrics.lines)
        report = self._folder.root / "report.html"
        ended = RunState(self._status.state, self._status.what)
        self._progress.say(f"{ended}; `digirl-dist view {shlex.quote(str(self._folder.root))}` shows it")
        told = f"run folder {self._folder.root}" + (f", report {report}" if report.exists() else "")
        self._progress.say(told, "bold")
        self._events.emit("run_ended", iterations=len(self._metrics.iterations))

    def _write_page(self) -> None:
        started = time.monotonic()
        try:
            self._viewed = self._viewed or ViewedRun(self._folder.root, most_bytes=PAGE_BYTES)
            write_report(self._viewed)
        except (OSError, DigirlDistError) as error:  # not worth waiting for: the page is written again soon
            self._progress.say(f"report.html cannot be written: {getattr(error, 'strerror', None) or error}")
        now = time.monotonic()
        self._page_due_at = now + max(_PAGE_EVERY_S, _PAGE_PAUSE * (now - started))
