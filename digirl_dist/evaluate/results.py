"""The output folder of evaluation jobs: a result per job, written last, and the merged table.

Ranks communicate only through these files. Every rank merges when it ends, for whatever reason, so the table is
complete once the last one has ended, and names the missing jobs if one was killed.
"""

from __future__ import annotations

import re
import time
from collections.abc import Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

import msgspec

from digirl_dist.errors import EvalJobsError
from digirl_dist.evaluate.jobs import EvalJob
from digirl_dist.parallel.rank import Rank
from digirl_dist.settings import regular_file
from digirl_dist.storage import atomic_files
from digirl_dist.types import Json

DONE, INCOMPLETE, FAILED, MISSING = "done", "incomplete", "failed", "missing"
_LOOK_S = 0.2


@dataclass(frozen=True)
class JobResult:
    """The result of a job."""

    name: str
    status: str
    rank: int
    seed: int
    metrics: dict[str, Json] = field(default_factory=dict)
    seconds: float = 0.0
    traceback: str = ""
    """Of a job that failed; of an incomplete one, which episodes are missing and why."""


@dataclass(frozen=True)
class OutputFolder:
    """Names every file of an evaluation.

    ``since`` (Unix seconds) is the start of the launch: an earlier failure does not count, because its job runs again.
    """

    root: Path
    since: float = 0.0

    def dataset(self, job: EvalJob, rank: Rank) -> Path:
        """Returns the file of a job's episodes."""
        suffix = f"_rank{rank.rank}" if rank.world_size > 1 else ""
        return self.root / f"dataset_{job.name}{suffix}.parquet"

    def keep_dataset_alone(self, job: EvalJob, rank: Rank) -> None:
        """Removes what an earlier launch of another number of ranks left of a job, which would count twice."""
        own, name = self.dataset(job, rank), re.compile(rf"dataset_{re.escape(job.name)}(_rank\d+)?\.parquet")
        for path in self.root.glob("dataset_*.parquet"):
            if name.fullmatch(path.name) and path != own:
                path.unlink()

    def result(self, job: EvalJob) -> Path:
        return self.root / f"result_{job.name}.json"

    def run(self, job: EvalJob) -> Path:
        """Returns the run folder of a job; episodes that landed there do not run again."""
        return self.root / "runs" / job.name

    @property
    def merged(self) -> Path:
        return self.root / "results.json"

    def write(self, job: EvalJob, result: JobResult) -> None:
        atomic_files.write_json(self.result(job), {"job": asdict(job), **asdict(result)})

    def begin(self, job: EvalJob, rank: Rank) -> None:
        """Notes what the job is before it runs. Raises EvalJobsError if another job of its name was begun here."""
        if self.read(job) is None:
            self.write(job, _missing(job, rank.rank))

    def read(self, job: EvalJob) -> JobResult | None:
        """Returns a job's result, if there is one. Raises EvalJobsError if the file belongs to another job."""
        try:
            written_at = self.result(job).stat().st_mtime
            content = msgspec.json.decode(regular_file.content(self.result(job)), type=dict[str, Any])
            of_job, result = content.pop("job", None), msgspec.convert(content, JobResult)
        except FileNotFoundError:
            return None
        except (OSError, ValueError, RecursionError) as error:
            raise EvalJobsError(
                f"{self.result(job)} cannot be read: {error}; remove it to run the job again"
            ) from error
        if of_job != asdict(job):
            raise EvalJobsError(
                f"{self.result(job)} is of another job of the same name, or of another checkpoint of its run; choose "
                f"another --output_dir, or remove it and {self.run(job)}"
            )
        has_failed_before = result.status != DONE and written_at < self.since
        return None if has_failed_before or result.status == MISSING else result


def merge(folder: OutputFolder, jobs: Sequence[EvalJob], world_size: int) -> list[JobResult]:
    """Writes ``results.json`` from the results of all jobs, in the order of the jobs.

    Ranks may merge at once: one that finds newer results when it has written writes again.
    """
    merged: list[JobResult] = []
    while merged != (found := [folder.read(job) or _missing(job, k % world_size) for k, job in enumerate(jobs)]):
        merged = found
        atomic_files.write_json(folder.merged, {"jobs": [asdict(result) for result in merged]})
    return merged


def wait_for_all(folder: OutputFolder, jobs: Sequence[EvalJob], limit_s: float) -> None:
    """Waits until every job has a result, at most ``limit_s`` seconds; a merge names the missing ones."""
    deadline = time.monotonic() + limit_s
    while any(folder.read(job) is None for job in jobs) and time.monotonic() < deadline:
        time.sleep(_LOOK_S)


def table(results: Sequence[JobResult]) -> str:
    """Returns a readable table with one line per job."""
    metrics = list(dict.fromkeys(key for result in results for key in result.metrics))
    head = ["job", "rank", "status", *metrics, "seconds"]
    rows = [[result.name, str(result.rank), result.status, *_values(result, metrics)] for result in results]
    widths = [max(len(row[column]) for row in [head, *rows]) for column in range(len(head))]
    lines = ["  ".join(cell.rjust(width) for cell, width in zip(row, widths, strict=True)) for row in [head, *rows]]
    return "\n".join(lines)


def _values(result: JobResult, metrics: Sequence[str]) -> list[str]:
    figures = [*(result.metrics.get(key) for key in metrics), result.seconds]
    return ["-" if value is None else f"{value:.3f}" if isinstance(value, float) else str(value) for value in figures]


def _missing(job: EvalJob, rank: int) -> JobResult:
    return JobResult(job.name, MISSING, rank, job.seed)
