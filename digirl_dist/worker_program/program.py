"""The resident program of a worker: keeps policy and emulators warm, runs leased tickets, spools what was collected.

``python -m digirl_dist.worker_program.program --folder DIR --orphan-s 60`` is started by ``attach`` and ends by itself
when no host has been heard of for that long, after it has finished the episodes under way.

``ProgramCore`` decides what to do. This module gives it the slots, policies, files, the link and the clock.
"""

from __future__ import annotations

import argparse
import os
import platform
import select
import sys
import time
from collections.abc import Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

from digirl_dist.capacity import Machine, PoolSize, pool_size
from digirl_dist.child_process import keep_short
from digirl_dist.errors import CheckpointError
from digirl_dist.exit_status import end_without_a_search_for_garbage
from digirl_dist.inference.local import LocalPolicies
from digirl_dist.protocol.job_folder import IS_TAKEN, JobFolder
from digirl_dist.protocol.messages import (
    MOST_NAME,
    MOST_SLOTS,
    Action,
    EpisodeManifest,
    EpisodeReady,
    Heartbeat,
    LoadPolicy,
    MachineFacts,
    NoAction,
    StartJob,
    TensorEntry,
    UnknownFile,
    WorkerMessage,
    shortened,
)
from digirl_dist.rollout.rollout import Finished, Rollout
from digirl_dist.rollout.slot import Slot
from digirl_dist.storage import file_system
from digirl_dist.storage.checkpoint import TensorInfo
from digirl_dist.storage.file_system import in_words
from digirl_dist.storage.provenance import dependency_versions, machine_facts
from digirl_dist.tasks import Key, Ticket
from digirl_dist.user_code.packing import unpack_file
from digirl_dist.worker_program.core import DiskRefusedError, ProgramCore, What
from digirl_dist.worker_program.link import Link, SocketLink
from digirl_dist.worker_program.remote_policies import RemotePolicies
from digirl_dist.worker_program.spool import Blobs, FileBlobs, Spool

_TURN_S = 0.5


class Program:
    """One run on one worker: the ``Rim`` of its core, in the thread that calls ``run``."""

    def __init__(self, folder: JobFolder, link: Link, blobs: Blobs, orphan_s: float, package: str) -> None:
        self._folder = folder
        self._link = link
        self._blobs = blobs
        self._spool = Spool(folder)
        self._core = ProgramCore(self, orphan_s, package, platform.python_version(), os.getpid(), _facts())
        self._rollout: Rollout | None = None
        self._policies: LocalPolicies | RemotePolicies | None = None
        self._ended = False
        self.stopped = False
        """True once the host has said that this run is over here."""

    def run(self) -> None:
        """Serves until the host says stop or is gone for good."""
        self._link.start(self._heartbeat)
        try:
            while not self._ended:
                self._turn()
        finally:
            self.close_slots()
            self._link.close()

    def _turn(self) -> None:
        self._core.wait(time.monotonic())
        if self._rollout is None:
            select.select([self._link], [], [], _TURN_S)
        else:
            self._act(self._rollout)
        for message in self._link.received():
            self._core.receive(message, time.monotonic())
        held, queued = ([], []) if self._rollout is None else (self._rollout.held(), self._rollout.tickets)
        now, heard_at = time.monotonic(), self._link.last_heard
        self._core.tick(now, heard_at, held, [ticket.key for ticket in queued])

    def _act(self, rollout: Rollout) -> None:
        """Gives the rollout one turn."""
        try:
            happened = rollout.turn(_TURN_S, [self._link])
        except Exception as error:
            self._core.act_failed(error)
            return
        for happening in happened:
            self._core.happened(happening)

    def _heartbeat(self) -> Heartbeat:
        """Called in a thread of the link."""
        rollout = self._rollout
        waits, in_service = ([], 0) if rollout is None else (rollout.waits(), rollout.in_service())
        return self._core.heartbeat(time.monotonic(), self._link.last_heard, waits, in_service)

    def send(self, message: WorkerMessage) -> None:
        self._link.send(message)

    def end(self, stopped: bool) -> None:
        self._ended, self.stopped = True, stopped

    def start_slots(self, job: StartJob) -> PoolSize:
        chosen = pool_size(job.slots, Machine.here(job.sharers if job.slots is None else 1), job.needs)
        policies = self._deciders(job)
        chosen = replace(chosen, slots=min(chosen.slots, MOST_SLOTS))
        slots = self._new_slots(job, chosen.slots)
        self._policies = policies
        self._rollout = Rollout(job.name, slots, policies, job.max_steps, shrink=job.slots is None)
        return chosen

    def close_slots(self) -> None:
        rollout, self._rollout, self._policies = self._rollout, None, None
        if rollout is not None:
            rollout.close()

    def lease(self, tickets: Sequence[Ticket]) -> None:
        self._running.lease(tickets)

    def drop(self, keys: Collection[Key], lost_to: str) -> None:
        self._running.drop(set(keys), lost_to)

    def idle(self, activity: str) -> None:
        self._running.idle(activity)

    def spent(self) -> dict[str, float]:
        return self._running.spent()

    def load(self, policy: LoadPolicy) -> bool:
        assert self._policies is not None, "no job runs"
        tensors = policy.tensors
        try:
            infos = {name: TensorInfo(one.digest, one.dtype, tuple(one.shape)) for name, one in tensors.items()}
            state = {name: self._blobs.tensor(info) for name, info in infos.items()}
            self._policies.load(policy.version, _cast_back(state, tensors))
        except CheckpointError:
            return False
        return True

    def share(self, version: int, other: int) -> None:
        assert self._policies is not None, "no job runs"
        self._policies.same(version, other)

    def keep_versions(self, versions: frozenset[int]) -> None:
        assert self._policies is not None, "no job runs"
        self._policies.retire(set(versions))

    def answer(self, answer: Action | NoAction) -> None:
        assert isinstance(self._policies, RemotePolicies)
        self._policies.receive(answer)

    def ask_again(self) -> None:
        assert isinstance(self._policies, RemotePolicies)
        self._policies.ask_again()

    def missing(self, what: What, digests: Sequence[str]) -> list[str]:
        with self._disk():
            if what == "job":
                self._blobs.verify(digests)
            return self._blobs.missing(digests)

    def rests(self, digests: Sequence[str]) -> dict[str, int]:
        with self._disk():
            sizes = {part.stem: part.stat().st_size for part in self._folder.blobs.glob("*.part")}
        return {name: sizes[name] for name in digests if name in sizes}

    def keep_blobs(self, tensors: Collection[str], packed: Collection[str]) -> None:
        with self._disk():
            self._blobs.keep(tensors, packed)

    def write(self, run: str, finished: Finished) -> EpisodeManifest:
        with self._disk(f"the episode cannot be written to {self._folder.episodes}: "):
            return self._spool.write(run, finished)

    def spooled(self, run: str) -> Sequence[EpisodeReady | UnknownFile]:
        with self._disk():
            return self._spool.found(run)

    def delete(self, names: Sequence[str]) -> None:
        with self._disk():
            self._spool.delete(names)

    @contextmanager
    def _disk(self, attempt: str = "") -> Iterator[None]:
        """Raises DiskRefusedError for an OSError of its body."""
        try:
            yield
        except OSError as error:
            place = f": {error.filename}" if error.filename and not attempt else ""
            raise DiskRefusedError(attempt + in_words(error, self._folder.root) + place) from error

    @property
    def _running(self) -> Rollout:
        assert self._rollout is not None, "no job runs"
        return self._rollout

    def _deciders(self, job: StartJob) -> LocalPolicies | RemotePolicies:
        """Where the host decides it sends no agent, and nothing heavy is imported here."""
        if job.agent is None:
            return RemotePolicies(self._link, job.answer_s)
        return LocalPolicies(unpack_file(self._blobs.file(job.agent)), job.torch_threads)

    def _new_slots(self, job: StartJob, count: int) -> list[Slot]:
        """Returns that many slots, whose emulators the rollout's first turn starts."""
        emulator = self._blobs.file(job.emulator)
        return [Slot(number, emulator, job.limits, self._folder.slot_log(number)) for number in range(count)]


def _cast_back(state: dict[str, Any], tensors: Mapping[str, TensorEntry]) -> dict[str, Any]:
    """Gives tensors that were cast for the wire the policy's own dtype."""
    cast = {name: entry.own_dtype for name, entry in tensors.items() if entry.own_dtype is not None}
    if not cast:
        return state
    import torch

    return {name: tensor.to(getattr(torch, cast[name])) if name in cast else tensor for name, tensor in state.items()}


def _facts() -> MachineFacts:
    facts: dict[str, Any] = {
        key: shortened(fact, MOST_NAME) if isinstance(fact, str) else fact for key, fact in machine_facts().items()
    }
    return MachineFacts(**facts, packages=dependency_versions())


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--folder", type=Path, required=True)
    parser.add_argument("--orphan-s", type=float, required=True)
    parser.add_argument("--package", default="", help="digest of the installed package, told to the host")
    options = parser.parse_args()
    end_without_a_search_for_garbage()
    folder = JobFolder(options.folder.resolve())
    folder.create()
    with folder.lock.open("a+") as lock:
        if not file_system.lock(lock):
            print(f"another program serves {folder.root}", file=sys.stderr)
            return IS_TAKEN
        lock.truncate(0)
        print(os.getpid(), file=lock, flush=True)
        os.chdir(folder.root)
        keep_short(folder.log)
        program = Program(folder, SocketLink(folder), FileBlobs(folder), options.orphan_s, options.package)
        program.run()
        if program.stopped:
            folder.remove()
    return 0


if __name__ == "__main__":
    sys.exit(main())
