"""The resident program of a worker: keeps policy and emulators warm, runs leased tickets, spools what was collected.

``python -m digirl_dist.worker_program.program --folder DIR --orphan-s 60`` is started by ``attach`` and ends by itself
when no host has been heard of for that long, after it has finished the episodes under way.

What to do is decided by ``ProgramCore``; this is its rim of slots, policies, files, the link and the clock.
"""

from __future__ import annotations

import argparse
import os
import platform
import select
import sys
import time
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

from digirl_dist.capacity import Machine, PoolSize, pool_size
from digirl_dist.child_process import keep_short
from digirl_dist.errors import CheckpointError, TrajectoryError
from digirl_dist.exit_status import end_without_a_search_for_garbage
from digirl_dist.inference.local import LocalPolicies
from digirl_dist.protocol.job_folder import IS_TAKEN, JobFolder
from digirl_dist.protocol.messages import (
    MOST_NAME,
    MOST_SLOTS,
    EpisodeFailed,
    Heartbeat,
    LoadPolicy,
    MachineFacts,
    StartJob,
    TensorEntry,
    shortened,
)
from digirl_dist.rollout.rollout import Finished, Rollout
from digirl_dist.rollout.slot import Slot
from digirl_dist.storage import file_system
from digirl_dist.storage.checkpoint import TensorInfo
from digirl_dist.storage.file_system import in_words
from digirl_dist.storage.provenance import dependency_versions, machine_facts
from digirl_dist.user_code.packing import unpack_file
from digirl_dist.worker_program.blobs import Blobs, FileBlobs
from digirl_dist.worker_program.core import Effects, ProgramCore
from digirl_dist.worker_program.effects import (
    AskAgain,
    CloseSlots,
    CountSeconds,
    DeleteEpisodes,
    DropTickets,
    Effect,
    End,
    FileEffect,
    FindMissing,
    IdleBecause,
    KeepBlobs,
    KeepVersions,
    LeaseTickets,
    ListSpooled,
    LoadTensors,
    PassAnswer,
    PolicyEffect,
    Send,
    ShareTensors,
    SlotEffect,
    StartSlots,
    WriteEpisode,
)
from digirl_dist.worker_program.link import Link, SocketLink
from digirl_dist.worker_program.remote_policies import RemotePolicies
from digirl_dist.worker_program.spool import Spool

_TURN_S = 0.5


class Program:
    """One run on one worker: carries out what its core asks for, in order, in the thread that calls ``run``."""

    def __init__(self, folder: JobFolder, link: Link, blobs: Blobs, orphan_s: float, package: str) -> None:
        self._folder = folder
        self._link = link
        self._blobs = blobs
        self._spool = Spool(folder)
        self._core = ProgramCore(orphan_s, package, platform.python_version(), os.getpid(), _facts())
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
            self._close_slots()
            self._link.close()

    def _turn(self) -> None:
        self._core.wait(time.monotonic())
        if self._rollout is None:
            select.select([self._link], [], [], _TURN_S)
        else:
            self._act(self._rollout)
        for message in self._link.received():
            self._do(type(message).__name__, self._core.receive(message, time.monotonic()))
        held, queued = ([], []) if self._rollout is None else (self._rollout.held(), self._rollout.tickets)
        now, heard_at = time.monotonic(), self._link.last_heard
        self._do("tick", self._core.tick(now, heard_at, held, [ticket.key for ticket in queued]))

    def _act(self, rollout: Rollout) -> None:
        """Gives the rollout one turn."""
        try:
            happened = rollout.turn(_TURN_S, [self._link])
        except Exception as error:
            self._do("act", self._core.act_failed(error))
            return
        for happening in happened:
            self._do("episode", self._core.happened(happening))

    def _heartbeat(self) -> Heartbeat:
        """Called in a thread of the link."""
        rollout = self._rollout
        waits, in_service = ([], 0) if rollout is None else (rollout.waits(), rollout.in_service())
        return self._core.heartbeat(time.monotonic(), self._link.last_heard, waits, in_service)

    def _do(self, during: str, effects: Effects) -> None:
        """Carries out the effects; what one of them raises is told to the host."""
        try:
            self._carry_out(effects)
        except Exception as error:
            self._carry_out(self._core.failed(during, error))
        self._core.settle()

    def _carry_out(self, effects: Effects) -> None:
        for effect in effects:
            self._carry_out(self._result(effect))

    def _result(self, effect: Effect) -> Effects:
        """Carries out one effect; returns what its result leads to."""
        match effect:
            case Send(message):
                self._link.send(message)
            case End(stopped):
                self._ended, self.stopped = True, stopped
            case StartSlots() | CloseSlots() | LeaseTickets() | DropTickets() | IdleBecause() | CountSeconds():
                return self._on_slots(effect)
            case LoadTensors() | ShareTensors() | KeepVersions() | PassAnswer() | AskAgain():
                return self._on_policies(effect)
            case FindMissing() | KeepBlobs() | WriteEpisode() | ListSpooled() | DeleteEpisodes():
                try:
                    return self._on_files(effect)
                except OSError as error:
                    place = f": {error.filename}" if error.filename else ""
                    return self._core.disk_failed(in_words(error, self._folder.root) + place)
        return []

    def _on_slots(self, effect: SlotEffect) -> Effects:
        match effect, self._rollout:
            case StartSlots(job), _:
                return self._core.started(job, self._start_slots(job))
            case CloseSlots(), _:
                self._close_slots()
            case LeaseTickets(tickets), Rollout() as rollout:
                rollout.lease(tickets)
            case DropTickets(keys, lost_to), Rollout() as rollout:
                rollout.drop(set(keys), lost_to)
            case IdleBecause(activity), Rollout() as rollout:
                rollout.idle(activity)
            case CountSeconds(), Rollout() as rollout:
                return self._core.counted(rollout.spent())
        return []

    def _on_policies(self, effect: PolicyEffect) -> Effects:
        policies = self._policies
        assert policies is not None, "no job runs"
        match effect:
            case LoadTensors(policy):
                return self._load(policies, policy)
            case ShareTensors(version, other):
                policies.same(version, other)
                return self._core.loaded(version)
            case KeepVersions(versions):
                policies.retire(set(versions))
            case PassAnswer(answer):
                assert isinstance(policies, RemotePolicies)
                policies.receive(answer)
            case AskAgain():
                assert isinstance(policies, RemotePolicies)
                policies.ask_again()
        return []

    def _on_files(self, effect: FileEffect) -> Effects:
        match effect:
            case FindMissing(what, digests):
                if what == "job":
                    self._blobs.verify(digests)
                return self._core.found_missing(what, self._blobs.missing(digests))
            case KeepBlobs(tensors, packed):
                self._blobs.keep(tensors, packed)
            case WriteEpisode(run, finished):
                return self._write(run, finished)
            case ListSpooled(run):
                return self._core.spooled(self._spool.found(run))
            case DeleteEpisodes(names):
                self._spool.delete(names)
        return []

    def _start_slots(self, job: StartJob) -> PoolSize:
        machine = Machine.here(job.sharers if job.slots is None else 1)
        chosen = pool_size(job.slots, machine, job.needs, f"worker {job.name}")
        policies = self._deciders(job)
        chosen = replace(chosen, slots=min(chosen.slots, MOST_SLOTS))
        slots = self._new_slots(job, chosen.slots)
        self._policies = policies
        self._rollout = Rollout(job.name, slots, policies, job.max_steps, shrink=job.slots is None)
        return chosen

    def _deciders(self, job: StartJob) -> LocalPolicies | RemotePolicies:
        """Where the host decides it sends no agent, and nothing heavy is imported here."""
        if job.agent is None:
            return RemotePolicies(self._link, job.answer_s)
        return LocalPolicies(unpack_file(self._blobs.file(job.agent)), job.torch_threads)

    def _new_slots(self, job: StartJob, count: int) -> list[Slot]:
        """Returns that many slots, whose emulators the rollout's first turn starts."""
        emulator = self._blobs.file(job.emulator)
        return [Slot(number, emulator, job.limits, self._folder.slot_log(number)) for number in range(count)]

    def _close_slots(self) -> None:
        rollout, self._rollout, self._policies = self._rollout, None, None
        if rollout is not None:
            rollout.close()

    def _load(self, policies: LocalPolicies | RemotePolicies, policy: LoadPolicy) -> Effects:
        tensors = policy.tensors
        try:
            infos = {name: TensorInfo(one.digest, one.dtype, tuple(one.shape)) for name, one in tensors.items()}
            state = {name: self._blobs.tensor(info) for name, info in infos.items()}
            policies.load(policy.version, _cast_back(state, tensors))
        except CheckpointError:
            return self._core.altered()
        return self._core.loaded(policy.version)

    def _write(self, run: str, finished: Finished) -> Effects:
        try:
            manifest = self._spool.write(run, finished)
        except OSError as error:
            reason = f"the episode cannot be written to {self._folder.episodes}: {in_words(error, self._folder.root)}"
            return self._core.not_written(finished.trajectory.ticket.key, reason)
        except TrajectoryError as error:  # the host would refuse it
            told = f"the emulator or the agent exceeds the limits of an episode: {error}"
            one = finished.trajectory
            return self._core.happened(EpisodeFailed(one.slot, one.ticket.key, shortened(told)))
        return self._core.written(manifest)


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
