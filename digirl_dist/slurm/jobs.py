"""The jobs of a run: each holds one node for a worker as long as the host talks to it."""

from __future__ import annotations

import math
import os
import re
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from digirl_dist.child_process import tail
from digirl_dist.errors import ClusterError
from digirl_dist.settings.workers import SlurmSettings
from digirl_dist.ssh import processes
from digirl_dist.ssh.connection import Address, quote
from digirl_dist.types import Clock


@dataclass(frozen=True)
class SlurmAddress(Address):
    """A worker on a node of this process's own allocation, or of a job that is submitted for it."""

    node: int | None = None
    """The node's place in this allocation, from 0; None: a job's."""
    folder: str = ""
    """A folder on the node for the job's sign of life; may start with ``~/``."""
    cpus: int | None = None
    """Cores of the job; None: all of its node."""


_LIMIT_S = 60.0
_KEPT = ("SLURM_CONF", "SLURM_JWT", "SLURM_CLUSTERS")
EXPORT = "--export=HOME,USER,LOGNAME,PATH,LANG"
"""What the environment of a job has besides Slurm's own variables: no key of the host's environment travels."""


def environment() -> dict[str, str]:
    """Returns this process's environment for Slurm's commands.

    Without what an allocation around this process would set as their options, and without its virtual environment.
    """
    kept = {
        name: value
        for name, value in os.environ.items()
        if name in _KEPT or not name.startswith(("SLURM_", "SBATCH_", "SALLOC_", "SCANCEL_", "SQUEUE_"))
    }
    own = str(Path(sys.prefix) / "bin")
    folders = kept.get("PATH", os.defpath).split(os.pathsep)
    return {**kept, "PATH": os.pathsep.join(each for each in folders if sys.prefix == sys.base_prefix or each != own)}


def ask(command: list[str], input: str = "") -> tuple[str, str]:
    """Returns stdout and stderr of one of Slurm's commands. Raises ClusterError with its words."""
    name = command[0]
    try:
        status, said, complaint = processes.run_to_end(command, _LIMIT_S, input.encode(), environment())
    except FileNotFoundError as error:
        raise ClusterError(f"this machine has no `{name}`: start the run where Slurm's commands are") from error
    except subprocess.TimeoutExpired as error:
        raise ClusterError(
            f"`{name}` did not answer within {_LIMIT_S:g} s: is slurmctld up (`scontrol ping`)?"
        ) from error
    except OSError as error:
        raise ClusterError(f"`{name}` does not start: {error.strerror}") from error
    if status != 0:
        raise ClusterError(f"`{name}` failed: {words(complaint) or f'status {status}'}")
    return said, complaint


def words(stderr: str) -> str:
    """Returns what a command says, without its own name before each line."""
    lines = [line.partition(": ")[2] if line.startswith(("s", "allocation")) else line for line in stderr.splitlines()]
    return "; ".join(line.removeprefix("error: ").strip() for line in lines if line.strip())


_LOOK_S = 3.0
_CHECK_S = 2
_LOG_LINES = 8
_LIVES = ("CONFIGURING", "COMPLETING", "PENDING", "RUNNING", "SUSPENDED")
_WILL_LIVE = ("REQUEUE", "RESIZING", "RESV", "SIGNALING", "SPECIAL", "STAGE", "STOPPED")
"""What the names of states begin with from which a job comes back."""
_FIELDS = "%i|%T|%r|%N"
_ID = re.compile(r"^(\d+)(?:;.*)?$", re.MULTILINE)
"""What ``sbatch`` prints, perhaps among words of the cluster's own."""
_LONGEST = 200
_OVER = re.compile("Invalid job id|already complet")
"""In what ``scancel`` says of a job that has ended, or of which Slurm knows nothing any more."""


@dataclass(frozen=True)
class JobState:
    """A job as ``squeue`` shows it."""

    job: str
    state: str
    reason: str = ""
    node: str = ""

    @property
    def is_running(self) -> bool:
        return self.state == "RUNNING"

    @property
    def has_ended(self) -> bool:
        """Whether it will never run again. One that is requeued has not."""
        return not self.state.startswith((*_LIVES, *_WILL_LIVE))


def parse(listing: str) -> dict[str, JobState]:
    """Returns the jobs in the output of ``squeue``, by id."""
    rows = (line.strip().split("|") for line in listing.splitlines() if line.count("|") == _FIELDS.count("|"))
    return {job: JobState(job, state, reason, node) for job, state, reason, node in rows}


class Jobs:
    """Submits, watches and cancels the jobs of one run, from the threads of its workers."""

    def __init__(
        self, settings: SlurmSettings, name: str, logs: Path, silence_s: float, clock: Clock = time.monotonic
    ) -> None:
        """``name`` is that of all jobs of this run and of no others; a job ends ``silence_s`` after the host."""
        self._settings = settings
        self._name = name
        self._logs = logs
        self._silence_s = silence_s
        self._clock = clock
        self._lock = threading.Lock()
        self._known: dict[str, JobState] = {}
        self._missed: set[str] = set()
        """Jobs of ours that were missing from the last answer of ``squeue``."""
        self._looked_at = -math.inf
        self._failure = ""
        """Why the last look failed; empty if it did not."""
        self._has_submitted = False
        self._ids: set[str] = set()
        self._may_have_more = False
        """Whether an answer of ``sbatch`` was lost, so that there may be a job that no worker knows."""
        self._closed = threading.Event()

    def would_start(self, address: SlurmAddress) -> str:
        """Returns what Slurm says of a job like this. Raises ClusterError if it would refuse it."""
        return ask([*self._sbatch(address), "--test-only"], _keeper(address, self._silence_s))[1].strip()

    def submit(self, address: SlurmAddress) -> str:
        """Submits a job for a worker; returns its id. The first call cancels what a killed host has left.

        Raises ClusterError.
        """
        with self._turn():
            if not self._has_submitted:
                self._cancel()
                self._logs.mkdir(parents=True, exist_ok=True)
                self._has_submitted = True
            if self._may_have_more:
                self._cancel_unknown()
            self._may_have_more = True
            said, _ = ask([*self._sbatch(address), "--parsable"], _keeper(address, self._silence_s))
            if not (found := _ID.search(said)):
                raise ClusterError(f"`sbatch --parsable` names no job, but says {said.strip()[:_LONGEST]!r}")
            self._may_have_more = False
            job = found[1]
            self._ids.add(job)
            self._known[job] = JobState(job, "PENDING")
            return job

    def look(self, job: str) -> JobState:
        """Returns a job's state, a few seconds old at most. Raises ClusterError."""
        with self._turn():
            if self._clock() - self._looked_at > _LOOK_S:
                self._look()
                self._looked_at = self._clock()
            if self._failure:
                raise ClusterError(self._failure)
            return self._known.get(job, JobState(job, "GONE"))

    def cancel(self, job: str) -> None:
        """Cancels a job that no worker wants any more; one that Slurm does not know has ended. Raises ClusterError."""
        with self._turn():
            try:
                ask(["scancel", job])
            except ClusterError as error:
                if not _OVER.search(str(error)):
                    raise
            self._ids.discard(job)

    def log_tail(self, job: str) -> str:
        """Returns the last lines of the job's log; empty if the nodes do not see the run folder."""
        return "\n".join(tail(self._logs / f"{job}.log", _LOG_LINES))

    def close(self) -> None:
        """Cancels all jobs, also those that still wait. Workers that wait for a command of Slurm give up."""
        self._closed.set()
        with self._lock:
            if self._has_submitted:
                self._cancel()

    @contextmanager
    def _turn(self) -> Iterator[None]:
        """Holds up others while one of Slurm's commands is at work, which may take a minute where Slurm is down."""
        with self._lock:
            if self._closed.is_set():
                raise ClusterError("the run has ended")
            yield

    def _look(self) -> None:
        self._failure = ""
        try:
            listed = self._listed()
            missed = self._ids - listed.keys()  # a controller that has just come up may answer without them: once
            self._known = listed | {job: self._known[job] for job in missed - self._missed if job in self._known}
            self._missed = missed
        except ClusterError as error:  # nobody else need wait for the same
            self._failure = str(error)

    def _listed(self) -> dict[str, JobState]:
        return parse(ask(["squeue", "--noheader", "--states=all", f"--format={_FIELDS}", *self._mine()])[0])

    def _cancel_unknown(self) -> None:
        """Cancels jobs whose submission seemed to fail: each attempt would leave another one. Raises ClusterError."""
        lost = [each.job for each in self._listed().values() if each.job not in self._ids and not each.has_ended]
        if lost:
            ask(["scancel", *lost])

    def _cancel(self) -> None:
        ask(["scancel", *self._mine()])

    def _mine(self) -> list[str]:
        return [f"--name={self._name}", f"--user={os.getuid()}"]

    def _sbatch(self, address: SlurmAddress) -> list[str]:
        settings = self._settings
        named = {"partition": settings.partition, "account": settings.account, "qos": settings.qos}
        options = [f"--{name}={value}" for name, value in named.items() if value is not None]
        options.append("--exclusive" if address.cpus is None else f"--cpus-per-task={address.cpus}")
        if settings.time_h is not None:
            options.append(f"--time={math.ceil(settings.time_h * 60)}")
        if settings.memory_gb is not None:
            options.append(f"--mem={math.ceil(settings.memory_gb * 1024)}M")
        own = [f"--job-name={self._name}", "--nodes=1", "--ntasks=1", "--requeue", EXPORT]
        logs = str(self._logs).replace("%", "%%")  # which Slurm would expand
        log = [f"--output={logs}/%j.log", "--open-mode=append", "--chdir=/"]
        return ["sbatch", *own, *log, *options, *settings.options]


def why_ended(state: JobState, log: str) -> str:
    """Returns how a job ended, for people."""
    how = "is gone" if state.state == "GONE" else f"ended: {state.state}"
    reason = f" ({state.reason})" if state.reason not in ("", "None") else ""
    return f"Slurm job {state.job} {how}{reason}" + (f"; the end of its log: {log}" if log else "")


def sign_of_life(folder: str, job: str) -> str:
    """Returns the folder on the node in which a file says that the host was there; for a shell."""
    return f"{quote([folder])}/slurm-{job}"


def _keeper(address: SlurmAddress, silence_s: float) -> str:
    """Returns the script of a job: it waits until the host has been silent for too long."""
    checks = math.ceil(silence_s / _CHECK_S)
    return f"""#!/bin/sh
umask 077
life={sign_of_life(address.folder, "$SLURM_JOB_ID")}
mkdir -p "$life" || exit 1
trap 'rm -rf "$life"' EXIT
trap 'exit 143' TERM
silent=0
while [ $silent -lt {checks} ]; do
    sleep {_CHECK_S} & wait $!
    if rm "$life/heard" 2>/dev/null; then silent=0; else silent=$((silent + 1)); fi
done
echo "no word of the host for {checks * _CHECK_S} s: this job ends" >&2
"""
