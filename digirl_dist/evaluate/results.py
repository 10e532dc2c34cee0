"""The output folder of evaluation jobs: a result per job, written last, and the merged table.

Ranks communicate only through these files. Every rank merges when it ends, for whatever reason, so the table is
complete once the last one has ended, and names the missing jobs if one was killed.
"""

from __future__ import annotations

import fcntl
import json
import re
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import IO, Any

from digirl_dist.errors import EvalJobsError
from digirl_dist.evaluate.jobs import EvalJob
from digirl_dist.parallel.rank import Rank
from digirl_dist.settings import regular_file
from digirl_dist.storage import atomic_files, file_system
from digirl_dist.storage.digest import digest
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

    def work(self, job: EvalJob) -> Path:
        """Returns a running job's folder; episodes that landed there do not run again."""
        return self.root / ".work" / f"{job.name}-{job.fingerprint()}"

    def occupy(self, jobs: Sequence[EvalJob]) -> IO[bytes]:
        """Keeps other launches from these jobs until the file is closed. Raises EvalJobsError if one runs them."""
        file = atomic_files.opened_to_append(self.root / ".jobs.lock")
        for job in jobs:
            try:
                fcntl.lockf(file, fcntl.LOCK_EX | fcntl.LOCK_NB, 1, int(digest(job.name.encode())[:12], 16))
            except (BlockingIOError, PermissionError) as error:  # what POSIX has for a lock that another process holds
                file.close()
                raise EvalJobsError(
                    f"another evaluation runs the job {job.name!r} in {self.root} now: wait for its end, or name "
                    "another --output_dir"
                ) from error
            except OSError as error:
                file.close()
                reason = f"{self.root} cannot be used, as its file system has no locks: {error.strerror}"
                raise EvalJobsError(f"{reason}; name another --output_dir") from error
        return file

    @property
    def merged(self) -> Path:
        return self.root / "results.json"

    def write(self, job: EvalJob, result: JobResult) -> None:
        atomic_files.write_json(self.result(job), {"fingerprint": job.fingerprint(), **asdict(result)})

    def read(self, job: EvalJob) -> JobResult | None:
        """Returns a job's result, if there is one. Raises EvalJobsError if the file belongs to another job."""
        try:
            written_at = self.result(job).stat().st_mtime
            content: dict[str, Any] = json.loads(regular_file.content(self.result(job)))
        except FileNotFoundError:
            return None
        except (OSError, ValueError) as error:
            raise EvalJobsError(
                f"{self.result(job)} cannot be read: {error}; remove it to run the job again"
            ) from error
        if content.pop("fingerprint", None) != job.fingerprint():
            raise EvalJobsError(
                f"{self.result(job)} is of another job of the same name, or of another checkpoint of its run; choose "
                "another --output_dir, or remove it"
            )
        result = JobResult(**content)
        return None if result.status != DONE and written_at < self.since else result


def merge(folder: OutputFolder, jobs: Sequence[EvalJob], world_size: int) -> list[JobResult]:
    """Writes ``results.json`` from the results of all jobs, in the order of the jobs."""
    with _alone(folder.root / ".merge.lock"):
        results = [folder.read(job) or _missing(job, index % world_size) for index, job in enumerate(jobs)]
        atomic_files.write_json(folder.merged, {"jobs": [asdict(result) for result in results]})
    return results


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


@contextmanager
def _alone(lock: Path) -> Iterator[None]:
    """Admits one merge at a time, so that an older view of the folder never replaces a newer one."""
    with atomic_files.opened_to_append(lock) as file:
        file_system.lock(file, wait=True)
        yield
