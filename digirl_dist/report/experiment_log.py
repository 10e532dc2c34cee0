"""All loggers of a run: hands each what it lacks, once, and lets none of them stop or delay the run."""

from __future__ import annotations

import json
import threading
from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path

import msgspec

from digirl_dist.plain_text import without_secrets_in
from digirl_dist.report.logged import rows, tags
from digirl_dist.report.logger_process import LoggerProcess
from digirl_dist.report.loggers import LoggedRun, Logger, hand, module
from digirl_dist.report.metrics import Figures, measured_version
from digirl_dist.settings import regular_file
from digirl_dist.storage import atomic_files
from digirl_dist.trajectory import Trajectory
from digirl_dist.types import Json

_PICTURES = 50
"""About how many iterations of a run get pictures of episodes."""
MEASURED = ("success_rate", "success_low", "success_high", "reward_mean")


class ExperimentLog:
    """Hands figures and episodes to loggers, by name; ``failed`` is told of each that fails, once.

    ``loggers.json`` of the run folder has the newest step that each has taken. A resumed run goes on behind it, and
    logs from ``metrics.jsonl`` what a logger missed, or all if it is new.
    """

    def __init__(self, names: Sequence[str], run: LoggedRun, failed: Callable[[str, str], None]) -> None:
        self._names = names
        self._run = replace(run, config=without_secrets_in(run.config))
        self._failed = failed
        self._path = Path(run.folder) / "loggers.json"
        self._taken: dict[str, dict[str, int]] = _read(self._path)
        if run.is_copy:  # what a service knows, it knows of the original
            self._taken = {name: self._taken.get(name, {}) for name in names if not module(name).ISOLATED}
        self._loggers: dict[str, Logger | LoggerProcess] = {}
        self._lock = threading.Lock()
        self._picture_every = 1

    def begin(
        self,
        first: int | None,
        metrics_after: Callable[[int], Sequence[Figures]],
        evaluations: Sequence[Figures],
        iterations: int = 0,
    ) -> None:
        """Starts the loggers and gives them what they lack.

        ``first`` is the iteration with which training goes on, None if nothing is learned. ``metrics_after`` returns
        the figures of all iterations after one.
        """
        self._picture_every = max(1, iterations // _PICTURES)
        for name in self._names:
            taken = self._taken.setdefault(name, {})
            again = None if first is None or max(taken.values(), default=-1) < first else first
            if again is not None and not module(name).ISOLATED:
                taken.update({kind: min(step, again - 1) for kind, step in taken.items()})
            try:
                self._loggers[name] = self._build(name, replace(self._run, purge=again))
            except Exception as error:  # whatever a library does, the run goes on
                self._failed(name, f"{type(error).__name__}: {error}")
        measured = [(measured_version(line), "evaluation", evaluation_tags(line)) for line in evaluations]
        taken_by_all = min((self._taken[name].get("figures", -1) for name in self._loggers), default=None)
        lacking = [] if taken_by_all is None else metrics_after(taken_by_all)
        learned = [(int(line["iteration"]), "figures", tags(line)) for line in lacking]
        known = [(step, kind, figures) for step, kind, figures in [*measured, *learned] if step is not None]
        for step, kind, figures in sorted(known, key=lambda one: one[:2]):
            self._give(kind, figures, step)

    def iteration(self, figures: Figures, trajectories: Sequence[Trajectory], step: int) -> None:
        self._give("figures", tags(figures), step)
        if trajectories and self._loggers:
            self._give("episodes", rows(trajectories, step % self._picture_every == 0), step)

    def evaluation(self, figures: Figures, step: int) -> None:
        """Logs a measurement of the checkpoint after ``step`` updates."""
        self._give("evaluation", evaluation_tags(figures), step)

    def close(self) -> None:
        """Ends all at once, each within its limit."""
        threads = [threading.Thread(target=self._close, args=each, daemon=True) for each in self._loggers.items()]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        self._loggers = {}

    def _build(self, name: str, run: LoggedRun) -> Logger | LoggerProcess:
        if not module(name).ISOLATED:
            built: Logger = module(name).build(run)
            return built
        return LoggerProcess(name, run, partial(self._failed, name), partial(self._take, name))

    def _give(self, kind: str, content: Json, step: int) -> None:
        plain = without_secrets_in(content)
        for name, logger in list(self._loggers.items()):
            if step <= self._taken[name].get(kind, -1):
                continue
            if isinstance(logger, LoggerProcess):
                logger.give(kind, plain, step)
                continue
            try:
                hand(logger, kind, plain, step)
                self._take(name, kind, step)
            except Exception as error:
                del self._loggers[name]
                self._failed(name, f"{type(error).__name__}: {error}")

    def _take(self, name: str, kind: str, step: int) -> None:
        with self._lock:
            self._taken[name][kind] = max(step, self._taken[name].get(kind, -1))
            try:
                atomic_files.write_text(self._path, json.dumps(self._taken))
            except OSError:
                pass  # a full disk is reported by those who must write

    def _close(self, name: str, logger: Logger | LoggerProcess) -> None:
        try:
            logger.close()
        except Exception as error:
            self._failed(name, f"{type(error).__name__}: {error}")


def evaluation_tags(figures: Figures) -> dict[str, float]:
    return tags({f"evaluation/{name}": figures.get(name) for name in MEASURED})


def _read(path: Path) -> dict[str, dict[str, int]]:
    try:
        return msgspec.json.decode(regular_file.content(path), type=dict[str, dict[str, int]])
    except (OSError, msgspec.MsgspecError):
        return {}
