"""Files to and from one worker, one after the other, in a thread of its own."""

from __future__ import annotations

import queue
import threading
import time
import traceback
from collections.abc import Callable, Iterable
from pathlib import Path

from digirl_dist import table
from digirl_dist.errors import FileRefusedError, JobError, LinkLostError, RunFolderError, TrajectoryError, WorkerError
from digirl_dist.fleet.news import News, Pulled, Refused
from digirl_dist.job import Notice, blob_name, episode_name
from digirl_dist.ssh.courier import Courier
from digirl_dist.tasks import Ticket
from digirl_dist.trajectory import Trajectory

Blobs = Iterable[tuple[str, memoryview]]
"""Digest and bytes."""


class Transfers:
    """Pushes blobs and pulls episodes in the order in which they were asked for.

    The first transfer that the worker or the link makes impossible ends it: ``failed`` is told why, and nothing more
    is carried.
    """

    def __init__(
        self, courier: Courier, worker: str, post: Callable[[News], None], failed: Callable[[WorkerError], None]
    ) -> None:
        self._courier = courier
        self._worker = worker
        self._post = post
        self._failed = failed
        self._jobs: queue.SimpleQueue[Callable[[], None] | None] = queue.SimpleQueue()
        threading.Thread(target=self._carry, name=f"transfers-{worker}", daemon=True).start()

    def push(self, blobs: Blobs, then: Callable[[int], None]) -> None:
        """Bring the blobs to the worker, then call ``then`` with the number of bytes that were sent."""
        named = ((blob_name(name), data, name) for name, data in blobs)
        self._jobs.put(lambda: then(self._courier.put_many(named)))

    def pull(self, notice: Notice, ticket: Ticket, path: Path) -> None:
        """Bring the episode to ``path`` and check it; Pulled or Refused tells how it went."""
        self._jobs.put(lambda: self._pull(notice, ticket, path))

    def close(self) -> None:
        """Carry what was asked for before, then end."""
        self._jobs.put(None)

    def _carry(self) -> None:
        try:
            while (job := self._jobs.get()) is not None:
                job()
        except WorkerError as error:
            self._failed(error)
        except RunFolderError as error:  # the host's disk is full: try again later, with all that is still spooled
            self._failed(LinkLostError(self._worker, str(error), "free some space on the host"))
        except Exception:  # a fault of ours must not end this thread without a word
            self._failed(JobError(self._worker, f"internal error: {traceback.format_exc()}", "please report it"))

    def _pull(self, notice: Notice, ticket: Ticket, path: Path) -> None:
        started = time.monotonic()
        try:
            self._courier.get(episode_name(notice.episode_id), path, notice.digest, notice.size)
            trajectory = _checked(path, ticket, self._worker)
        except (TrajectoryError, FileRefusedError) as error:
            self._post(Refused(self._worker, notice, str(error)))
        else:
            self._post(Pulled(self._worker, notice, trajectory, path, time.monotonic() - started))


def _checked(path: Path, ticket: Ticket, worker: str) -> Trajectory:
    """The one episode in the file, provided that it is the one that was asked for."""
    trajectories = table.read(path)
    if len(trajectories) != 1:
        raise TrajectoryError(f"{path} holds {len(trajectories)} episodes instead of one")
    found = trajectories[0].ticket
    wanted = (*ticket.key, ticket.seed, ticket.policy_version, ticket.task.id, worker)
    if (*found.key, found.seed, found.policy_version, found.task.id, trajectories[0].worker) != wanted:
        raise TrajectoryError(f"{path} is the episode of another ticket: {found}")
    return trajectories[0]
