"""The way to a worker program on a Ray cluster: calls of its actor, and the object store."""

from __future__ import annotations

import threading
import time
import weakref
from collections import deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import wait
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import ray
from ray.exceptions import GetTimeoutError, RayError

from digirl_dist.errors import (
    DigirlDistError,
    FileRefusedError,
    LinkLostError,
    TrajectoryError,
    UnreachableError,
    WorkerError,
    on_error,
)
from digirl_dist.fleet.connection import ConnectProgress, Files
from digirl_dist.fleet.outgoing import Blob
from digirl_dist.fleet.spec import Job
from digirl_dist.fleet.worker_events import WorkerEvent
from digirl_dist.protocol.messages import EpisodeManifest, Need
from digirl_dist.ray_cluster.actor import WorkerActor
from digirl_dist.ray_cluster.connect import Cluster
from digirl_dist.settings import LimitSettings, RayActorSettings
from digirl_dist.ssh.channel import Deadline
from digirl_dist.storage.digest import digest

_HEAR_S = 5.0
_SLICE_S = 0.5


@dataclass(frozen=True)
class RayWorkerSpec:
    """One worker of a cluster: how many slots it has (None: as many as its node carries), and its folder there."""

    name: str
    slots: int | None
    folder: str
    package: str = ""


@dataclass
class _Parcel:
    """A blob in the object store, and the nodes that have fetched it."""

    reference: Any
    nodes: set[str] = field(default_factory=set)


class ObjectShelf:
    """Puts each blob into the object store once; it stays there as long as its checkpoint is in use here."""

    def __init__(self) -> None:
        self._parcels: weakref.WeakKeyDictionary[Blob, _Parcel] = weakref.WeakKeyDictionary()
        self._lock = threading.Lock()

    def take(self, blob: Blob, node: str) -> tuple[Any, int]:
        """Returns the reference, and how many bytes the node must fetch for it."""
        with self._lock:
            parcel = self._parcels.get(blob)
            if parcel is None:
                parcel = _Parcel(ray.put(np.frombuffer(blob.content(), np.uint8)))
                self._parcels[blob] = parcel
            size = 0 if node in parcel.nodes else blob.size
            parcel.nodes.add(node)
            return parcel.reference, size


class RayConnector:
    """Places an actor on a node that has room. Whatever was there before of the same worker is gone."""

    def __init__(self, cluster: Cluster, settings: RayActorSettings, limits: LimitSettings) -> None:
        self._cluster = cluster
        self._settings = settings
        self._limits = limits
        self._shelf = ObjectShelf()

    def connect(self, spec: RayWorkerSpec, job: Job, replace: bool, progress: ConnectProgress) -> RayWorkerConnection:
        progress("find room in the Ray cluster and start the worker program", self._settings.start_s)
        actor = self._actor(spec, job)
        with on_error(partial(ray.kill, actor)):
            node = self._placed(spec.name, actor)
        return RayWorkerConnection(spec.name, actor, node, self._shelf, self._limits)

    def forget(self, worker: str) -> None:
        """Does nothing: the actor went with its connection."""

    def _actor(self, spec: RayWorkerSpec, job: Job) -> Any:
        settings = self._settings
        remote: Any = ray.remote
        return remote(
            max_restarts=0,
            concurrency_groups=WorkerActor.GROUPS,
            num_cpus=settings.num_cpus,
            num_gpus=settings.num_gpus,
            resources=dict(settings.resources),
            scheduling_strategy="SPREAD",
        )(WorkerActor).remote(spec.folder, job.orphan_s)

    def _placed(self, name: str, actor: Any) -> str:
        """Returns the node that took the actor. Raises UnreachableError if none does in time."""
        waiting = actor.node.remote()
        deadline = time.monotonic() + self._settings.start_s
        while time.monotonic() < deadline and not self._cluster.closed.is_set():
            if ray.wait([waiting], timeout=_SLICE_S)[0]:
                try:
                    return str(ray.get(waiting))
                except RayError as error:
                    raise UnreachableError(name, f"its actor cannot be started: {error}") from error
        raise UnreachableError(name, *self._why_not_placed())

    def _why_not_placed(self) -> tuple[str, str]:
        """Returns the reason, and what to do."""
        wanted = {"CPU": self._settings.num_cpus, "GPU": self._settings.num_gpus, **self._settings.resources}
        there, free = self._cluster.resources(), self._cluster.free()
        needs = ", ".join(f"{kind} {amount:g}" for kind, amount in wanted.items() if amount)
        has = ", ".join(f"{kind} {there.get(kind, 0.0):g} (free {free.get(kind, 0.0):g})" for kind in wanted)
        return (
            f"its actor, which needs {needs}, did not start within {self._settings.start_s:.0f} s; "
            f"the Ray cluster has in all {has}",
            "if too little is free on any one node, ask for less in `collector` or add nodes; "
            "if nodes are slow to start Python, set collector.start_s higher",
        )


class RayWorkerConnection:
    """A ``WorkerConnection`` to an actor. Its end is the program's."""

    def __init__(self, worker: str, actor: Any, node: str, shelf: ObjectShelf, limits: LimitSettings) -> None:
        self.files: Files = ObjectFiles(worker, actor, node, shelf, limits.stuck_s)
        self._worker = worker
        self._actor = actor
        self._limits = limits
        self._said: deque[bytes] = deque()
        self._attached = b""
        self._hearing: Any = None
        self._heard: Any = None
        self._closed = threading.Event()

    def write(self, line: bytes) -> None:
        _result(self._worker, self._actor.tell.remote(line), self._limits.stuck_s)

    def readline(self, timeout_s: float) -> bytes:
        deadline = Deadline(timeout_s)
        while not self._said:
            if self._closed.is_set():
                raise LinkLostError(self._worker, "the connection was closed")
            if deadline.left_s <= 0:
                raise LinkLostError(self._worker, f"the worker program is silent for {timeout_s:.0f} s")
            if self._hearing is None:
                self._hearing = self._actor.hear.remote(_HEAR_S)
                self._heard = self._hearing.future()
            asked_at = time.monotonic()
            has_come = wait([self._heard], _SLICE_S).done  # not in Ray, where an exit would abort the process
            deadline.waited(asked_at)
            if has_come:
                said, self._hearing = _result(self._worker, self._hearing, _SLICE_S), None
                if said is None:
                    return b""
                self._said.extend(said)
        line, end, self._attached = self._said.popleft().partition(b"\n")
        return line + end

    def read(self, size: int) -> bytes:
        """Returns what has come with its line."""
        return self._attached[:size]

    def answers(self) -> bool:
        """Returns False: an actor that is silent is replaced anyhow."""
        return False

    def why_ended(self) -> WorkerError:
        try:
            said = _result(self._worker, self._actor.failure.remote(), _HEAR_S)
        except WorkerError as error:
            return error
        return LinkLostError(self._worker, "the worker program ended" + (f": {said}" if said else ""))

    def close(self) -> None:
        if not self._closed.is_set():
            self._closed.set()
            ray.kill(self._actor)


class ObjectFiles:
    """``Files`` through the object store."""

    def __init__(self, worker: str, actor: Any, node: str, shelf: ObjectShelf, limit_s: float) -> None:
        self._worker = worker
        self._actor = actor
        self._node = node
        self._shelf = shelf
        self._limit_s = limit_s

    def push(self, need: Need, blobs: Sequence[Blob], tell: Callable[[WorkerEvent], None]) -> int:
        taken = {blob.digest: self._shelf.take(blob, self._node) for blob in blobs}
        references = {name: reference for name, (reference, _) in taken.items()}
        _result(self._worker, self._actor.push.remote(references, self._limit_s), self._limit_s)
        return sum(size for _, size in taken.values())

    def fetch(self, episodes: Mapping[Path, EpisodeManifest]) -> Iterator[tuple[Path, DigirlDistError | None]]:
        for path, manifest in episodes.items():
            try:
                self._fetch(manifest, path)
            except (TrajectoryError, FileRefusedError) as error:
                yield path, error
            else:
                yield path, None

    def _fetch(self, manifest: EpisodeManifest, path: Path) -> None:
        content = _result(self._worker, self._actor.fetch.remote(manifest.episode_id), self._limit_s)
        if len(content) != manifest.size or digest(content) != manifest.digest:
            raise TrajectoryError(f"episode {manifest.episode_id} was altered on worker {self._worker}")
        path.write_bytes(content)


def _result(worker: str, reference: Any, limit_s: float) -> Any:
    """Returns what a call of the actor gave. Raises FileRefusedError for its OSError, LinkLostError when it is gone."""
    try:
        return ray.get(reference, timeout=limit_s)
    except GetTimeoutError as error:  # an OSError, too
        raise LinkLostError(worker, f"its actor did not answer within {limit_s:.0f} s") from error
    except OSError as error:
        raise FileRefusedError(worker, str(error)) from error
    except RayError as error:
        raise LinkLostError(worker, f"its actor is gone: {str(error).splitlines()[0]}") from error
