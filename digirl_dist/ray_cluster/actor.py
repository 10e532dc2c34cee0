"""A worker on a node of a Ray cluster: the worker program in a thread, its link and its files as an actor's methods.

It is the same program as over SSH, with the same folder. Only what the host pushed stays in the node's object store.
"""

from __future__ import annotations

import errno
import os
import queue
import threading
import time
import traceback
from collections.abc import Callable, Collection, Mapping, Sequence
from pathlib import Path
from typing import IO, TYPE_CHECKING, Any, ClassVar

import ray

from digirl_dist.errors import CheckpointError
from digirl_dist.protocol.job_folder import JobFolder
from digirl_dist.protocol.messages import Heartbeat, WorkerMessage, encode
from digirl_dist.storage import file_system
from digirl_dist.storage.checkpoint import TensorInfo, tensor_from
from digirl_dist.worker_program.link import Link, beat
from digirl_dist.worker_program.program import Program
from digirl_dist.worker_program.spool import delete_altered

if TYPE_CHECKING:
    import torch

_PREDECESSOR_S = 10.0


class ActorLink(Link):
    """What the program says waits here until the host asks for it."""

    def __init__(self) -> None:
        super().__init__()
        self._said: queue.SimpleQueue[bytes | None] = queue.SimpleQueue()

    def start(self, state: Callable[[], Heartbeat]) -> None:
        threading.Thread(target=beat, args=(self, state), name="link-heartbeat", daemon=True).start()

    def send(self, message: WorkerMessage, attached: bytes = b"") -> None:
        self._said.put(encode(message, attached))

    def close(self) -> None:
        self._said.put(None)

    def said(self, limit_s: float) -> list[bytes] | None:
        """Returns the messages since the last call, perhaps none in that time; None when no more will come."""
        lines: list[bytes] = []
        try:
            line = self._said.get(timeout=limit_s)
            while line is not None:
                lines.append(line)
                line = self._said.get_nowait()
        except queue.Empty:
            return lines
        self._said.put(None)
        return lines or None


class ObjectBlobs:
    """Tensors in the object store of the node, which all workers there share; packed classes in files."""

    def __init__(self, folder: JobFolder) -> None:
        self._folder = folder
        self._arrays: dict[str, Any] = {}

    def add(self, digest: str, array: Any) -> None:
        """Adds a blob; ``array`` is uint8 and may be a view of the object store."""
        self._arrays[digest] = array

    def missing(self, digests: Sequence[str]) -> list[str]:
        return [name for name in digests if name not in self._arrays and not self._folder.blob(name).exists()]

    def verify(self, digests: Sequence[str]) -> None:
        delete_altered(map(self._folder.blob, digests))

    def tensor(self, info: TensorInfo) -> torch.Tensor:
        try:
            return tensor_from(bytearray(self._arrays[info.digest].data), info)
        except CheckpointError:
            del self._arrays[info.digest]
            raise

    def file(self, digest: str) -> Path:
        path = self._folder.blob(digest)
        if not path.exists():
            part = path.with_suffix(".part")
            part.write_bytes(self._arrays[digest].data)
            part.rename(path)
        return path

    def keep(self, tensors: Collection[str], packed: Collection[str]) -> None:
        for name in self._arrays.keys() - {*tensors, *packed}:  # others may come meanwhile
            del self._arrays[name]


class WorkerActor:
    """One worker. Ends with the host's process, with its node, or when it is killed; then so do its emulators.

    Each concurrency group has a thread, so that nobody waits for somebody who only listens.
    """

    GROUPS: ClassVar[dict[str, int]] = {"tell": 1, "hear": 1, "files": 1}

    def __init__(self, folder: str, orphan_s: float) -> None:
        self._folder = JobFolder(Path(folder).expanduser().resolve())
        self._folder.create()
        self._lock = _sole_owner(self._folder)
        self._link = ActorLink()
        self._blobs = ObjectBlobs(self._folder)
        self._failure = ""
        self._program = Program(self._folder, self._link, self._blobs, orphan_s, package="")
        threading.Thread(target=self._run, name="program", daemon=True).start()

    def node(self) -> str:
        """Returns the node on which it was placed."""
        return str(ray.get_runtime_context().get_node_id())

    @ray.method(concurrency_group="tell")
    def tell(self, line: bytes) -> None:
        """Hands a line of the host to the program."""
        self._link.receive(line)

    @ray.method(concurrency_group="hear")
    def hear(self, limit_s: float) -> list[bytes] | None:
        """Returns what the program says (see ``ActorLink.said``)."""
        return self._link.said(limit_s)

    @ray.method(concurrency_group="hear")
    def failure(self) -> str:
        """Returns the traceback that ended the program; empty if it ended in order."""
        return self._failure

    @ray.method(concurrency_group="files")
    def push(self, blobs: Mapping[str, ray.ObjectRef[Any]], limit_s: float) -> None:
        """Takes blobs by digest: each node fetches an object once, whoever of its workers asks first."""
        for digest, array in zip(blobs, ray.get(list(blobs.values()), timeout=limit_s), strict=True):
            self._blobs.add(digest, array)

    @ray.method(concurrency_group="files")
    def fetch(self, episode_id: str) -> bytes:
        """Returns the rows of a spooled episode. Raises OSError."""
        return self._folder.episode(episode_id).read_bytes()

    def _run(self) -> None:
        try:
            self._program.run()
            if self._program.stopped:
                self._folder.remove()
        except Exception:
            self._failure = traceback.format_exc(limit=-6)
            self._link.close()


def _sole_owner(folder: JobFolder) -> IO[str]:
    """Takes the folder's lock, which a killed predecessor gives up as it ends. Raises OSError if it does not."""
    lock = folder.lock.open("a+")
    deadline = time.monotonic() + _PREDECESSOR_S
    while not file_system.lock(lock):
        if time.monotonic() > deadline:
            raise BlockingIOError(errno.EWOULDBLOCK, "its predecessor still holds it", str(folder.lock))
        time.sleep(0.05)
    lock.truncate(0)
    print(os.getpid(), file=lock, flush=True)
    return lock
