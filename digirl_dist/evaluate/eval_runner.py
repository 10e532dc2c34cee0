"""Runs a list of evaluation jobs, alone or as one rank of several, each on its own device.

    python -m digirl_dist.evaluate.eval_runner --eval_jobs_config jobs.json
    torchrun --nproc_per_node=4 -m digirl_dist.evaluate.eval_runner --eval_jobs_config jobs.json

Rank r runs the jobs whose index modulo the number of ranks is r. No process group is needed.
"""

from __future__ import annotations

import argparse
import math
import os
import sys
import time
import traceback
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from digirl_dist.capacity import let_waiting_threads_sleep
from digirl_dist.errors import FolderInUseError, SettingsError
from digirl_dist.evaluate.jobs import EvalJob, read_jobs
from digirl_dist.evaluate.results import DONE, FAILED, INCOMPLETE, JobResult, OutputFolder, merge, table, wait_for_all
from digirl_dist.exit_status import (
    Parser,
    end_by_signals_as_by_ctrl_c,
    end_without_a_search_for_garbage,
    exit_status,
    interruptions_wait,
)
from digirl_dist.parallel.compute_device import DeviceRequest, resolve_device, visible_devices
from digirl_dist.parallel.rank import Rank, launched_rank
from digirl_dist.plain_text import printable
from digirl_dist.settings.paths import PathUse, expanded, refuse_unwritable


@dataclass(frozen=True)
class EvalRun:
    """The work of one rank."""

    jobs: Sequence[EvalJob]
    rank: Rank
    device: str
    folder: OutputFolder
    continue_on_error: bool
    merge_wait_s: float

    def run(self) -> bool:
        """Runs this rank's jobs and merges all results, whatever happens. Returns False if the launch must fail.

        With ``continue_on_error`` only rank 0 reports failure, because a launcher ends the other ranks when one fails.
        """
        try:
            went_well = self._run_own()
            if self.rank.is_first and (went_well or self.continue_on_error):
                wait_for_all(self.folder, self.jobs, self.merge_wait_s)
        finally:
            results = merge(self.folder, self.jobs, self.rank.world_size)
        if not self.rank.is_first:
            return went_well or self.continue_on_error
        print(table(results), flush=True)
        return all(result.status == DONE for result in results)

    def _run_own(self) -> bool:
        """Runs this rank's jobs; returns whether all succeeded. Stops at a failure unless ``continue_on_error``."""
        went_well = True
        for job in self.jobs[self.rank.rank :: self.rank.world_size]:
            if not self._is_done(job):
                went_well &= self._run_one(job)
                if not went_well and not self.continue_on_error:
                    break
        return went_well

    def _is_done(self, job: EvalJob) -> bool:
        result = self.folder.read(job)
        return result is not None and result.status == DONE

    def _run_one(self, job: EvalJob) -> bool:
        with interruptions_wait():
            from digirl_dist.evaluate.measure import measure

        self.folder.begin(job, self.rank)
        print(f"rank {self.rank.rank} ({self.device}) runs {job.name}", flush=True)
        started = time.monotonic()
        try:
            measured = measure(job, self.device, self.folder.run(job), self.folder.dataset(job, self.rank))
        except FolderInUseError:
            raise  # another evaluation runs it, and will write its result
        except (Exception, SystemExit) as error:  # a job's own code may raise anything; the table must show it
            trace = traceback.format_exc()
            seconds = round(time.monotonic() - started, 3)
            self.folder.write(job, JobResult(job.name, FAILED, self.rank.rank, job.seed, {}, seconds, trace))
            reason = printable(f"{type(error).__name__}: {error}")
            print(f"rank {self.rank.rank}: {job.name} failed: {reason}", file=sys.stderr, flush=True)
            return False
        self.folder.keep_dataset_alone(job, self.rank)
        seconds = round(time.monotonic() - started, 3)
        status = INCOMPLETE if measured.missing else DONE
        result = JobResult(job.name, status, self.rank.rank, job.seed, measured.metrics, seconds, measured.missing)
        self.folder.write(job, result)
        if measured.missing:
            said = printable(measured.missing)
            print(f"rank {self.rank.rank}: {job.name} is incomplete: {said}", file=sys.stderr, flush=True)
        return not measured.missing


def main(argv: Sequence[str] | None = None) -> int:
    """Returns the exit status: 0 all jobs done, 1 some are not, 2 nothing could be run, 130 interrupted."""
    parser = Parser(prog="digirl-dist eval-jobs", description="measure policies; alone or by torchrun")
    add_arguments(parser)
    let_waiting_threads_sleep()
    end_without_a_search_for_garbage()
    return exit_status(lambda: execute(parser.parse_args(argv)))


def execute(options: argparse.Namespace) -> int:
    """Runs the jobs that the command line names; returns the exit status."""
    end_by_signals_as_by_ctrl_c()
    advice = "the same command with --resume runs the missing jobs"
    return exit_status(lambda: 0 if _prepared(options).run() else 1, advice)


def _prepared(options: argparse.Namespace) -> EvalRun:
    """Checks everything before any job runs. Raises SettingsError."""
    listed = read_jobs(options.eval_jobs_config)
    rank = launched_rank(os.environ)
    mask = os.environ.get("CUDA_VISIBLE_DEVICES")
    wanted = DeviceRequest(listed.device, options.policy_device, options.policy_device_id)
    device = resolve_device(wanted, rank, visible_devices(mask))
    folder = OutputFolder(options.output_dir.resolve(), _launched_at(rank))
    if options.resume and not folder.root.is_dir():
        raise SettingsError(f"--resume: {folder.root} is not there; leave --resume out, or name the right --output_dir")
    refuse_unwritable("--output_dir", folder.root, PathUse.output_folder)
    folder.root.mkdir(parents=True, exist_ok=True)
    jobs = [job.pinned() for job in listed.jobs]
    for job in jobs:
        result = folder.read(job)
        if not options.continue_on_error and (result is None or result.status != DONE):
            job.refuse_unusable(folder.run(job), device)
    return EvalRun(jobs, rank or Rank(), device, folder, options.continue_on_error, options.merge_wait)


def _launched_at(rank: Rank | None) -> float:
    """Returns when the launcher, or without one this process, was started, in Unix seconds."""
    import psutil

    process = psutil.Process()
    parent = process.parent() if rank is not None else None
    return float((parent or process).create_time())


def _seconds(text: str) -> float:
    try:
        seconds = float(text)
    except ValueError:
        seconds = math.nan
    if not seconds >= 0:
        raise argparse.ArgumentTypeError(f"{text!r} is no number of seconds from 0 up")
    return seconds


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--eval_jobs_config", type=expanded, required=True, help="the list of jobs, JSON or YAML")
    parser.add_argument("--output_dir", type=expanded, default=Path("runs/eval_jobs"), help="datasets and results.json")
    parser.add_argument("--continue_on_error", action="store_true", help="run the other jobs when one fails")
    parser.add_argument("--resume", action="store_true", help="continue in --output_dir; fail if it does not exist")
    parser.add_argument("--policy_device", help="cpu, cuda, cuda:N; beats the device in the list of jobs")
    parser.add_argument("--policy_device_id", type=int, help="the same as --policy_device cuda:ID")
    parser.add_argument("--merge_wait", type=_seconds, default=3600.0, help="seconds that rank 0 waits for other ranks")


if __name__ == "__main__":
    sys.exit(main())
