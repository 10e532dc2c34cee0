"""The way to a worker on a node of a Slurm cluster: waits until there is one, then opens a session on it."""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Callable

from digirl_dist.errors import ClusterError, UnreachableError
from digirl_dist.settings import SshSettings
from digirl_dist.slurm.address import SlurmAddress
from digirl_dist.slurm.jobs import Jobs, JobState, sign_of_life, why_ended
from digirl_dist.slurm.session import SrunConnection

_LOOK_S = 1.0

Progress = Callable[[str, float | None], None]
"""Called with what is being done, and its limit in seconds; None: nobody knows how long it takes."""


class Nodes:
    """Keeps one job for each worker that needs one. One that has ended is replaced when its worker connects anew."""

    def __init__(self, jobs: Jobs, ssh: SshSettings, pending_s: float | None) -> None:
        self._jobs = jobs
        self._ssh = ssh
        self._pending_s = pending_s
        self._job_of: dict[str, str] = {}
        self._closed = threading.Event()

    def connect(self, address: SlurmAddress, progress: Progress) -> SrunConnection:
        """Waits for the worker's node and connects to it. ``progress`` may raise to give up.

        Raises UnreachableError with Slurm's reason if the job cannot be submitted, or has ended.
        """
        try:
            if address.node is not None:
                place, life = [f"--jobid={os.environ['SLURM_JOB_ID']}", f"--relative={address.node}"], ""
            else:
                job = self._running(address, progress)
                place, life = [f"--jobid={job}"], sign_of_life(address.folder, job)
        except ClusterError as error:
            raise UnreachableError(address.name, str(error)) from error
        progress("start a step on its node", self._ssh.connect_s + self._ssh.login_s)
        return SrunConnection(address, place, life, self._ssh)

    def forget(self, worker: str) -> None:
        """Cancels the job of a worker that is not wanted any more. Raises ClusterError."""
        if job := self._job_of.get(worker):
            self._jobs.cancel(job)
            self._job_of.pop(worker, None)

    def close(self) -> None:
        """Ends all jobs of the run. Raises ClusterError."""
        self._closed.set()
        self._jobs.close()

    def _running(self, address: SlurmAddress, progress: Progress) -> str:
        """Returns the worker's job once it runs. Raises ClusterError or UnreachableError."""
        job = self._job_of.get(address.name)
        if job is None:
            progress("submit a job to Slurm", None)
            job = self._job_of[address.name] = self._jobs.submit(address)
        since = time.monotonic()
        while not (state := self._jobs.look(job)).is_running:
            if state.has_ended:
                self.forget(address.name)  # an answer without it may be wrong, and its successor would be a second one
                raise UnreachableError(address.name, why_ended(state, self._jobs.log_tail(job)))
            waited_s = time.monotonic() - since
            if self._pending_s is not None and waited_s > self._pending_s:
                reason = f"Slurm job {job} has waited for {waited_s:.0f} s, longer than slurm.pending_s: {_said(state)}"
                raise UnreachableError(address.name, reason, "ask for less in `slurm`, or wait longer")
            progress(f"wait for Slurm job {job}: {_said(state)}", None)
            if self._closed.wait(_LOOK_S):
                raise UnreachableError(address.name, "the run has ended")
        return job


def _said(state: JobState) -> str:
    return state.state.lower() + (f", {state.reason}" if state.reason not in ("", "None") else "")
