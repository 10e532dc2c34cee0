"""Workers on nodes of a Slurm cluster: waits for a node, and opens a connection that ``srun`` carries.

Each command is a step of a job, and its streams are the step's. Wherever jobs can be submitted this works: nodes need
no sshd and no keys, what runs there belongs to the job, and ends with it. Slurm proves who speaks; nothing is
encrypted.
"""

from __future__ import annotations

import os
import re
import threading
import time
from collections.abc import Callable, Sequence

from digirl_dist.errors import ClusterError, LinkLostError, UnreachableError, WorkerError, failure_here, on_error
from digirl_dist.settings import SshSettings
from digirl_dist.slurm.jobs import EXPORT, Jobs, JobState, SlurmAddress, environment, sign_of_life, why_ended, words
from digirl_dist.ssh.connection import Address, Connection, quote, user_name
from digirl_dist.ssh.piped import PipedChannel, PipedSessions, ProcessSession

_JOB_END_S = 3.0
"""The steps of a job that is ended end so long after one another, at most."""
_ANSWER_S = 3.0


class SrunSession(ProcessSession):
    """A step of a job. A larger status is that of a signal, or of its job's end."""

    most_status = 128


class SrunChannel(PipedChannel):
    """A ``Channel`` over a step. When its job ends, ``srun`` may report that as the command's own failure."""

    def _lost(self) -> LinkLostError | None:
        why = self._link_ended(0.0)
        if not why and self._session.exit_status(_JOB_END_S) != 0:
            why = self._link_ended(_JOB_END_S if self._session.is_over else 0.0)
        return self._link_lost(why) if why else None


class SrunConnection(Connection):
    """A ``Connection`` to a node of a job, watched by a step that answers each ping, and so keeps the job alive."""

    def __init__(self, address: Address, place: Sequence[str], life: str, settings: SshSettings) -> None:
        """``place`` are the options of ``srun`` that name job and node; ``life`` is a folder, expanded by a shell.

        Raises UnreachableError if no step can be started there.
        """
        self.address = address
        self.port, self.user, self.fingerprint = 0, user_name(), ""
        self._settings = settings
        self._srun = ["srun", "--quiet", *place, "--overlap", "--nodes=1", "--ntasks=1", "--unbuffered"]
        self._srun += ["--mpi=none", "--cpu-bind=none", "--chdir=/", EXPORT]
        self._sessions = PipedSessions()
        self._ended = threading.Event()
        self._why = "the step that answers pings has ended"
        self._heard_at = time.monotonic()
        self._life = self._open(
            f'echo "$SLURMD_NODENAME"; while read -r _; do touch {life}/heard 2>/dev/null; echo; done'
            if life
            else 'echo "$SLURMD_NODENAME"; while read -r _; do echo; done',
            PipedChannel,
        )
        self.host = self._first_word()
        with on_error(self.close):
            threading.Thread(target=self._ping, name=f"srun-ping-{address.name}", daemon=True).start()

    @property
    def alive(self) -> bool:
        return not self._ended.is_set()

    def answers(self) -> bool:
        return self.alive and time.monotonic() - self._heard_at < self._settings.ping_s + _ANSWER_S

    def open(self, command: str | Sequence[str]) -> PipedChannel:
        line = quote(command)
        if self._ended.is_set():
            raise LinkLostError(self.worker, self._why)
        return self._open(line, SrunChannel)

    def _open(self, line: str, kind: type[PipedChannel]) -> PipedChannel:
        session = SrunSession([*self._srun, "sh", "-c", line], environment())
        try:
            self._sessions.add(session)
        except OSError as error:
            raise LinkLostError(self.worker, f"the connection ended while starting `{line}` ({error})") from error
        return kind(
            session,
            self.worker,
            line,
            self._settings.stall_s,
            1024 * self._settings.slowest_kb_s,
            lambda wait_s: self._why if self._ended.wait(wait_s) else None,
        )

    def close(self) -> None:
        self._ended.set()
        threading.Thread(target=self._sessions.close, name="srun-close", daemon=True).start()  # `srun` may take a while

    def _first_word(self) -> str:
        limit_s = self._settings.connect_s + self._settings.login_s
        try:
            line = self._life.readline(limit_s)
        except WorkerError as error:
            self.close()
            raise UnreachableError(self.worker, f"srun got no answer of the node within {limit_s:g} s") from error
        if not line:
            self.close()
            said = words(self._life.stderr_tail()) or "it says nothing"
            raise UnreachableError(self.worker, f"srun could not start a step: {said}")
        return line.decode(errors="replace").strip()

    def _ping(self) -> None:
        """Ends the connection where the step ends, or is silent for too long."""
        try:
            while not self._ended.is_set():
                self._life.write(b"\n")
                if not self._life.readline(self._settings.silence_s):
                    break
                self._heard_at = time.monotonic()
                self._ended.wait(self._settings.ping_s)
        except Exception as error:  # nobody else watches it
            self._why = failure_here(self.worker, "watch its node", error).reason
        if said := re.findall(r"\*\*\* (.*?) \*\*\*", self._life.stderr_tail()):
            self._why = f"Slurm: {said[-1]}"
        self.close()


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
                raise UnreachableError(
                    address.name,
                    f"Slurm job {job} has waited for {waited_s:.0f} s, longer than slurm.pending_s: {_said(state)}",
                    "ask for less in `slurm`, or wait longer",
                )
            progress(f"wait for Slurm job {job}: {_said(state)}", None)
            if self._closed.wait(_LOOK_S):
                raise UnreachableError(address.name, "the run has ended")
        return job


def _said(state: JobState) -> str:
    return state.state.lower() + (f", {state.reason}" if state.reason not in ("", "None") else "")
