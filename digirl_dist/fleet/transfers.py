"""Files to and from one worker: a queue that carries them, and threads of all that check what came and flush it."""

from __future__ import annotations

import ctypes
import threading
import time
from collections import deque
from collections.abc import Callable, Sequence
from functools import cache, partial
from pathlib import Path

from digirl_dist.emulator.episode_guard import EpisodeGuard
from digirl_dist.errors import LinkLostError, RunFolderError, TrajectoryError, WorkerError, failure_here
from digirl_dist.fleet.connection import Files
from digirl_dist.fleet.ledger import Ledger, Shares
from digirl_dist.fleet.outgoing import Blob
from digirl_dist.fleet.worker_events import DiskFull, Pulled, PullRefused, Throttled, WorkerEvent
from digirl_dist.protocol.messages import EpisodeManifest, Need
from digirl_dist.storage import atomic_files, episode_file
from digirl_dist.storage.disk_full import require_space
from digirl_dist.storage.file_system import FULL
from digirl_dist.tasks import Ticket
from digirl_dist.threads import SerialQueue, Threads
from digirl_dist.trajectory import Trajectory

_UNCHECKED = 4
"""Episodes of a worker that may have come and are not checked and durable yet; then it waits with the next one."""

_CHECKERS = 32
"""Episodes of all workers that are checked and flushed at the same time: most of that is done outside of Python."""

_PAUSE_S = 0.5


class Transfers:
    """Pushes blobs and pulls episodes in the order in which they were asked for.

    The first transfer that the worker or the link makes impossible ends it: ``failed`` gets the reason, and nothing
    more is carried.
    """

    def __init__(
        self,
        files: Files,
        worker: str,
        post: Callable[[WorkerEvent], None],
        failed: Callable[[WorkerError], None],
        guard: EpisodeGuard,
        shares: Shares,
        ledger: Ledger,
        full_disk_s: float,
    ) -> None:
        """``full_disk_s`` bounds how long a pull waits for space on the host's disk."""
        self._files = files
        self._worker = worker
        self._post = post
        self._failed = failed
        self._guard = guard
        self._shares = shares
        self._full_disk_s = full_disk_s
        self._closing = threading.Event()
        self._pulls: deque[tuple[Path, EpisodeManifest, Ticket]] = deque()
        self._ledger = ledger
        self._unchecked = threading.Semaphore(_UNCHECKED)
        self._checks = threading.Lock()
        """One check of a worker at a time: more would only compete with those of others for the interpreter."""
        self._queue = SerialQueue(f"transfers-{worker}", self._fail)

    def push(self, need: Need, blobs: Sequence[Blob], then: Callable[[int], None]) -> None:
        """Brings the blobs to the worker, then calls ``then`` with the number of bytes that were sent."""
        self._queue.do(lambda: then(self._files.push(need, blobs, self._post)))

    def pull(self, manifest: EpisodeManifest, ticket: Ticket, path: Path) -> None:
        """Brings the episode to ``path`` and checks it; Pulled or PullRefused tells how it went.

        Episodes that wait are pulled together, ahead of pushes between them.
        """
        try:
            self._shares.check(self._worker, manifest.size)
        except TrajectoryError as error:
            self._post(PullRefused(self._worker, manifest, str(error)))
            return
        self._pulls.append((path, manifest, ticket))
        self._queue.do(self._pull_waiting)

    def close(self) -> None:
        """Takes no more; the transfers before are made, unless one waits for space."""
        self._closing.set()
        self._queue.close()

    def _fail(self, error: Exception) -> None:
        if isinstance(error, RunFolderError):  # the host's disk is full: try again later, with all still spooled
            error = LinkLostError(self._worker, str(error), "free some space on the host")
        self._failed(failure_here(self._worker, "carry or check its files", error))

    def _pull_waiting(self) -> None:
        if not self._pulls:
            return  # an earlier job took them along
        pulls: dict[Path, tuple[EpisodeManifest, Ticket]] = {}
        started = time.monotonic()
        try:
            path, manifest, _ = self._pulls[0]
            self._await_space(manifest.size, path)
            size = 0
            while self._pulls and (path := self._pulls[0][0]) not in pulls:
                size += self._pulls[0][1].size
                if pulls and _lacks_space(size, path) is not None:
                    break  # what does not fit waits for a job of its own
                path, manifest, ticket = self._pulls.popleft()
                pulls[path] = manifest, ticket
            for path, problem in self._files.fetch({path: manifest for path, (manifest, _) in pulls.items()}):
                manifest, ticket = pulls[path]
                if problem is None:
                    self._await_turn()
                    self._unchecked.acquire()
                    self._ledger.keep_once_there_is_room("unchecked", manifest.size)
                    _checkers().do(partial(self._arrived, manifest, ticket, path, started))
                else:
                    self._post(PullRefused(self._worker, manifest, str(problem)))
                started = time.monotonic()
        except BaseException:  # nobody would continue what an interrupted transfer leaves
            for path in pulls:
                path.with_name(path.name + ".part").unlink(missing_ok=True)
            raise

    def _await_space(self, size: int, path: Path) -> None:
        """Waits while the host's disk has no room for the file; nobody else waits for this worker's transfers.

        Raises RunFolderError after ``full_disk_s``, LinkLostError at the end of the connection.
        """
        deadline, is_told = time.monotonic() + self._full_disk_s, False
        while (reason := _lacks_space(size, path)) is not None:
            if time.monotonic() > deadline:
                raise RunFolderError(reason)
            if not is_told:
                self._post(DiskFull(self._worker, reason))
                is_told = True
            if self._closing.wait(_PAUSE_S):
                raise LinkLostError(self._worker, f"the connection ended while {reason}")

    def _await_turn(self) -> None:
        """Waits while this worker's episodes have cost the host more than its share of time."""
        is_told = False
        while wait_s := self._shares.wait_s(self._worker, time.monotonic()):
            if not is_told:
                reason = "its episodes take far longer to check than those of other workers; the next ones wait"
                self._post(Throttled(self._worker, reason))
                is_told = True
            if self._closing.wait(min(wait_s, _PAUSE_S)):
                return

    def _arrived(self, manifest: EpisodeManifest, ticket: Ticket, path: Path, started: float) -> None:
        """Checks an episode and makes its file durable."""
        try:
            self._post(self._made_durable(manifest, ticket, path, started))
        except Exception as error:
            self._fail(error)
        finally:
            self._ledger.keep("unchecked", -manifest.size)
            self._unchecked.release()

    def _made_durable(
        self, manifest: EpisodeManifest, ticket: Ticket, path: Path, started: float
    ) -> Pulled | PullRefused:
        try:
            trajectory = self._checked(path, manifest, ticket)
            atomic_files.flush(path)
        except TrajectoryError as error:
            path.unlink(missing_ok=True)
            _give_memory_back()
            return PullRefused(self._worker, manifest, str(error))
        except OSError as error:
            raise RunFolderError(f"cannot write {path} on this machine: {error.strerror}") from error
        return Pulled(self._worker, manifest, trajectory, path, time.monotonic() - started)

    def _checked(self, path: Path, manifest: EpisodeManifest, ticket: Ticket) -> Trajectory:
        """Returns the episode in the file. Raises TrajectoryError unless it is the ticket's, as announced."""
        with self._checks:
            started = time.thread_time()
            try:
                return self._as_announced(path, manifest, ticket)
            finally:
                self._shares.checked(self._worker, time.thread_time() - started, time.monotonic())

    def _as_announced(self, path: Path, manifest: EpisodeManifest, ticket: Ticket) -> Trajectory:
        episode, memory = episode_file.read_counted(path, self._guard.most_steps)
        found = episode.episode_id, episode.slot, episode.ticket.policy_version
        announced = manifest.episode_id, manifest.slot, manifest.policy_version
        if found != announced:
            raise TrajectoryError(f"it is the episode {found}, and {announced} was announced")
        self._shares.check(self._worker, memory)
        self._guard.check(episode, ticket, self._worker)
        self._shares.kept(self._worker, memory)
        return episode


_checkers = cache(partial(Threads, _CHECKERS, "arrivals"))
"""What checks and flushes the files of all runs of this process: flushes at the same time share a journal's commits."""


def _give_memory_back() -> None:
    """Has glibc return what was freed: else each thread keeps what the largest episode that it refused took."""
    trim = getattr(ctypes.CDLL(None), "malloc_trim", None)
    if trim is not None:
        trim(0)


def _lacks_space(size: int, path: Path) -> str | None:
    """Returns why the file cannot be written now; None if it can. Raises RunFolderError if it never can."""
    try:
        require_space(size, path.parent)
    except OSError as error:
        reason = f"{path} cannot be written on this machine: {error.strerror}"
        if error.errno not in FULL:
            raise RunFolderError(reason) from error
        return reason
    return None
