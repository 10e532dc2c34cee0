"""Every error that this package raises on purpose, and ``on_error`` for what has to be undone after one.

A module that calls paramiko, adbutils or another library turns its errors into one of these, with ``from``. All of them
can be pickled.
"""

from __future__ import annotations

import errno
import traceback
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any


@contextmanager
def on_error(undo: Callable[[], object]) -> Iterator[None]:
    """Calls ``undo`` if anything is raised in the block, Ctrl-C included, and lets it pass."""
    try:
        yield
    except BaseException:
        undo()
        raise


class DigirlDistError(Exception):
    """Base of all errors that a user may see."""


class SettingsError(DigirlDistError):
    """The configuration cannot be used. The command line exits with status 2."""


class RankError(SettingsError, ValueError):
    """A launcher's variables are missing, out of range or contradict each other."""


class DeviceError(SettingsError):
    """The requested device is not available, or ranks would have to share one."""


class EvalJobsError(SettingsError, ValueError):
    """A list of evaluation jobs cannot be used, or contradicts its output folder."""


class PeerError(DigirlDistError):
    """Another rank did not arrive in time, or holds other weights than this one."""


class RunFolderError(DigirlDistError):
    """The run folder is foreign or damaged."""


class FolderInUseError(RunFolderError):
    """Another process has the run folder."""


class NoRunError(SettingsError, RunFolderError):
    """No run began in the folder that was named."""


class CheckpointError(DigirlDistError):
    """A checkpoint is missing, altered or does not fit."""


class TrajectoryError(DigirlDistError):
    """An episode file is truncated, altered or belongs to something else."""


class ProtocolError(DigirlDistError):
    """A line is no message of the other side, or a field of a message is out of its range."""


class TrainingError(DigirlDistError):
    """An update cannot continue, because its loss is infinite or not a number."""


class HubError(DigirlDistError):
    """The Hugging Face hub could not be reached, or it refused."""


class LoggerError(DigirlDistError):
    """A logger cannot begin, or fails at what it is given."""


class JudgeError(DigirlDistError):
    """The judge of episodes refuses, fails, or was unavailable for too long. The episodes are safe."""


class ChatError(DigirlDistError):
    """A server that speaks OpenAI's chat completions gives no answer."""


class ChatRefused(ChatError):
    """The server refuses the request; the message has the remedy."""


class ChatUnfit(ChatRefused):
    """It refuses this request as it is: there may be something in it that it does not know."""


class ChatAway(ChatError):
    """The server was down, busy or over its quota for too long, broke its answer off, or the client was closed."""


class StateError(DigirlDistError):
    """An agent or algorithm cannot return its state, or load one."""


class AgentError(DigirlDistError):
    """An agent cannot decide, or lacks a requested ability."""


class ClusterError(DigirlDistError, RuntimeError):
    """A Ray or Slurm cluster does not answer, refuses, or lacks the requested resources."""


class PolicyLostError(DigirlDistError):
    """The host's policy process ended or does not answer. It is restarted, and the request is repeated."""


class ActionError(DigirlDistError):
    """An action that is not part of the emulator's vocabulary."""


class EmulatorError(DigirlDistError):
    """An emulator raised, hung or died; its episode is retried."""


class EmulatorHung(EmulatorError):
    """A reset or step took longer than its limit."""


class EmulatorCrashed(EmulatorError):
    """The emulator's process ended."""


class WorkerError(DigirlDistError):
    """One worker failed; transient unless its class is ``fatal``.

    ``worker`` is the name in the configuration, ``reason`` what happened, ``remedy`` what the user can do.
    """

    fatal = False
    """True if a retry cannot help before a person has acted."""

    def __init__(self, worker: str, reason: str, remedy: str = "") -> None:
        super().__init__(worker, reason, remedy)
        self.worker = worker
        self.reason = reason
        self.remedy = remedy

    def __str__(self) -> str:
        advice = f" -> {self.remedy}" if self.remedy else ""
        return f"worker {self.worker}: {self.reason}{advice}"


class HostKeyError(WorkerError):
    """The host key is unknown or differs from the known one."""

    fatal = True


class LoginError(WorkerError):
    """The machine refused every key that was offered."""

    fatal = True


class ShellError(LoginError):
    """The login shell there, or one of its start-up files, does something else than to run commands."""


class InstallError(WorkerError):
    """Python or the package cannot be used on the worker."""

    fatal = True


class JobError(WorkerError):
    """The worker cannot run the job: its folder, the agent or the emulator cannot be set up there."""

    fatal = True


class FileRefusedError(WorkerError):
    """The worker cannot read or write a file; the connection and the courier remain usable."""


class UnreachableError(WorkerError):
    """No connection succeeded within its limit."""


class SlowShellError(UnreachableError):
    """The machine let us in, but its login shell ran no command in time."""


class UnknownHostError(UnreachableError):
    """Nobody knows an address of the machine's name."""


class LinkLostError(WorkerError):
    """The connection or the worker program ended or fell silent."""


class SilentError(LinkLostError):
    """A command said nothing, or not all that it was to say, in the time that it had."""


class HostFullError(LinkLostError):
    """This host has no room on its own disk for what serves the worker."""


class TooSlowError(LinkLostError):
    """A transfer stands still, or is slower than it may be, though the link answers."""


class MisconductError(WorkerError):
    """The worker says what no honest program says, or fails at all that it is given.

    ``proven``: it goes out of service at once; else after ``limits.worker_offences`` of them.
    """

    def __init__(self, worker: str, reason: str, proven: bool = False) -> None:
        super().__init__(worker, reason)
        self.args = (worker, reason, proven)
        self.proven = proven


class HandlingError(WorkerError):
    """What a worker says meets a defect of this program: costs the connection, and in the end the worker."""


_RAISE_FILES = "raise the limit of open files (`ulimit -n`) and start the host again"
_RAISE_TASKS = "raise the limit of processes (`ulimit -u`), end others, or add memory"
SHORTAGES = {
    errno.EMFILE: _RAISE_FILES,
    errno.ENFILE: _RAISE_FILES,
    errno.EAGAIN: _RAISE_TASKS,
    errno.ENOMEM: _RAISE_TASKS,
    errno.ENOSPC: "make room on this host's disks, /tmp included",
    errno.EDQUOT: "make room on this host's disks, /tmp included",
}


def told(error: BaseException) -> str:
    """Returns what the error says, with the innermost calls if it was not foreseen."""
    return str(error) if isinstance(error, DigirlDistError) else "".join(traceback.format_exception(error, limit=-6))


def failure_here(worker: str, doing: str, error: Exception) -> WorkerError:
    """Returns what to tell of a worker that this host cannot serve.

    That is what the error tells of it already, or what the host lacks, or else a HandlingError.
    """
    if isinstance(error, WorkerError):
        return error
    if isinstance(error, OSError) and error.errno in SHORTAGES:
        kind = HostFullError if error.errno in (errno.ENOSPC, errno.EDQUOT) else LinkLostError
        place = f": {error.filename}" if error.filename else ""
        return kind(worker, f"this host cannot {doing}: {error.strerror}{place}", SHORTAGES[error.errno])
    if isinstance(error, RuntimeError) and "can't start new thread" in str(error):
        return LinkLostError(worker, f"this host cannot {doing}: {error}", _RAISE_TASKS)
    trace = "".join(traceback.format_exception(error))
    return HandlingError(worker, f"internal error: this program cannot {doing}\n{trace}", "please report it")


class UntrustedError(SettingsError):
    """A folder that may be a stranger's names code, files, programs or machines, and nobody said that they be used."""


class CollectionError(DigirlDistError):
    """The tickets of an iteration cannot be completed."""


class IncompleteError(CollectionError):
    """``Fleet.collect`` did not get every episode; ``result`` is the ``Episodes`` that it got."""

    def __init__(self, message: str, result: Any) -> None:
        super().__init__(message, result)
        self.result = result

    def __str__(self) -> str:
        return str(self.args[0])
