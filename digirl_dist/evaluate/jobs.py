"""Lists of evaluation jobs, read from JSON or YAML."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field, fields, replace
from pathlib import Path
from typing import Any

import msgspec

from digirl_dist.assembly.validate import refuse_contradictions
from digirl_dist.errors import CheckpointError, EvalJobsError, SettingsError
from digirl_dist.parallel.compute_device import AUTO
from digirl_dist.settings import Settings, configuration
from digirl_dist.settings.keys import key_of
from digirl_dist.settings.paths import expanded
from digirl_dist.settings.safe_yaml import read_yaml
from digirl_dist.storage.checkpoint import Checkpoints
from digirl_dist.types import Natural

_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,120}")
_OF_A_RANK = re.compile(r".*_rank\d+")
_INSTEAD = {
    "save_path": "the job's own save_path",
    "seed": "the job's own seed",
    "rollout_size": "the job's num_episodes",
    "eval_iterations": "the job's num_episodes",
    "trainer.device": "the list's device",
    "start_from": "the job's own save_path",
    "task_mode": "a job measures, which",
}
"""Settings of runs that a job has elsewhere, and what has their meaning there."""
_UNLESS_GIVEN, _MEASURES = ("parallel=single", "loggers=[]"), ("task_mode=evaluate",)


@dataclass(frozen=True)
class EvalJob:
    """The evaluation of one policy on one configuration.

    Needs exactly one of ``num_episodes`` and ``num_steps``; the latter runs whole episodes, in the order of their
    tickets, until they have that many steps in total.
    """

    name: str
    num_episodes: int | None = None
    num_steps: int | None = None
    seed: Natural = 0
    save_path: str | None = None
    """The run folder whose checkpoint is evaluated; null: fresh weights drawn from ``seed``."""
    checkpoint: int | None = None
    """Which of its checkpoints; null: the newest when the jobs are started."""
    config_path: str = "config/multimachine"
    config_name: str = "eval"
    overrides: list[str] = field(default_factory=list)
    """Overrides in the command line's notation: ``emulator=gymnasium``, ``task_split=train``."""

    @property
    def checkpoints(self) -> Checkpoints:
        """Those of the run in ``save_path``."""
        return Checkpoints(expanded(str(self.save_path), "save_path") / "checkpoints")

    def pinned(self) -> EvalJob:
        """Returns the job with the checkpoint that it evaluates now: a run may go on while the job is interrupted."""
        if self.save_path is None or self.checkpoint is not None:
            return self
        return replace(self, checkpoint=max(self.checkpoints.iterations(), default=None))

    def settings(self, folder: Path, device: str, rounds: int = 1) -> Settings:
        """Returns the settings of the run in ``folder`` that measures on ``device`` in so many rounds.

        Raises SettingsError for what cannot be used.
        """
        overrides = [*_UNLESS_GIVEN, *self.overrides, *_MEASURES, f"seed={self.seed}"]
        settings = configuration.load(self.config_path, self.config_name, overrides)
        start = None if self.save_path is None else str(self.checkpoints.root / f"{self.trained():06d}")
        slots = settings.bsize if isinstance(settings.bsize, int) else 1
        settings = replace(
            settings,
            save_path=str(folder),
            start_from=start,
            rollout_size=self.num_episodes or slots,
            eval_iterations=rounds,
            trainer=replace(settings.trainer, device=device),
            limits=replace(settings.limits, set_aside_share=1.0),
        )
        refuse_contradictions(settings)
        return settings

    def trained(self) -> int:
        """Returns which checkpoint of the run in ``save_path`` is evaluated. Raises CheckpointError without one."""
        kept = self.checkpoints.iterations()
        if self.checkpoint is None or self.checkpoint not in kept:
            which = "" if self.checkpoint is None else f" {self.checkpoint}, but {', '.join(map(str, kept)) or 'none'}"
            raise CheckpointError(f"{self.checkpoints.root} holds no checkpoint{which}")
        return self.checkpoint

    def refuse_unusable(self, folder: Path, device: str) -> None:
        """Raises EvalJobsError for settings that cannot be used, and for a checkpoint that is not there."""
        try:
            self.settings(folder, device)
        except (SettingsError, CheckpointError) as error:
            raise EvalJobsError(f"job {self.name!r} cannot run: {error}") from error


@dataclass(frozen=True)
class JobList:
    """The content of a file of jobs: ``{"device": "auto", "jobs": [{…}, …]}``."""

    jobs: Sequence[EvalJob]
    device: str = AUTO


def read_jobs(path: Path) -> JobList:
    """Reads a file of jobs. Raises EvalJobsError (a ValueError) naming the job and the wrong key."""
    try:
        content = read_yaml(path, named=True)  # JSON is YAML
    except SettingsError as error:
        raise EvalJobsError(str(error)) from error
    if isinstance(content, list):
        content = {"jobs": content}
    if not isinstance(content, dict) or not isinstance(content.get("jobs"), list) or not content["jobs"]:
        raise EvalJobsError(f'{path} holds no jobs; it must read {{"jobs": [{{"name": …, "num_episodes": …}}, …]}}')
    if unknown := [key for key in content if key not in ("jobs", "device")]:
        raise EvalJobsError(f"{path} has the unknown key {unknown[0]!r}; there are device and jobs")
    jobs = [_job(entry, f"job {index} of {path}") for index, entry in enumerate(content["jobs"])]
    _refuse_repeated_names(jobs, path)
    return JobList(jobs, str(content.get("device", AUTO)))


def _job(entry: Any, where: str) -> EvalJob:
    if not isinstance(entry, dict) or not isinstance(entry.get("name"), str):
        raise EvalJobsError(f"{where} has no name")
    where = f"{where}, {entry['name']!r},"
    if not _NAME.fullmatch(entry["name"]):
        raise EvalJobsError(f"{where} needs a name that can be a file's: letters, digits and . _ -")
    if _OF_A_RANK.fullmatch(entry["name"]):
        raise EvalJobsError(f"{where} has a name that ends as the files of a rank do; choose one without _rank…")
    known = [option.name for option in fields(EvalJob)]
    if unknown := [key for key in entry if key not in known]:
        raise EvalJobsError(f"{where} has the unknown key {unknown[0]!r}; there are {', '.join(known)}")
    try:
        job = msgspec.convert(entry, EvalJob)
    except msgspec.ValidationError as error:
        raise EvalJobsError(f"{where} cannot be used: {error}") from error
    counts = [count for count in (job.num_episodes, job.num_steps) if count is not None]
    if len(counts) != 1 or counts[0] < 1:
        raise EvalJobsError(f"{where} needs exactly one of num_episodes and num_steps, at least 1")
    if job.checkpoint is not None and job.save_path is None:
        raise EvalJobsError(f"{where} has a checkpoint and no save_path: name the run that it is of")
    for override in job.overrides:
        key = key_of(override)
        if key in _INSTEAD:
            raise EvalJobsError(f"{where} has {override!r:.200} in its overrides: {_INSTEAD[key]} says that")
    return job


def _refuse_repeated_names(jobs: Sequence[EvalJob], path: Path) -> None:
    repeated = [name for name, count in Counter(job.name for job in jobs).items() if count > 1]
    if repeated:
        raise EvalJobsError(f"{path} has more than one job called {repeated[0]!r}; their results would overwrite")
