"""The resident program of a worker: keeps policy and emulators warm, runs leased tickets, spools what was collected.

``python -m digirl_dist.worker_program.program --folder DIR --orphan-s 60`` is started by ``attach`` and ends by itself
when no host has been heard of for that long, after it has finished the episodes under way.
"""

from __future__ import annotations

import argparse
import fcntl
import os
import platform
import select
import shutil
import sys
import time
import traceback
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from digirl_dist.capacity import Machine, PoolSize, choose
from digirl_dist.errors import CheckpointError, DigirlDistError, ProtocolError, TrajectoryError
from digirl_dist.inference.local import Policies
from digirl_dist.protocol.job_folder import JobFolder
from digirl_dist.protocol.messages import (
    SPOKEN,
    Action,
    Broken,
    Collected,
    Drop,
    EpisodeManifest,
    EpisodeReady,
    Heartbeat,
    Hello,
    HostMessage,
    Landed,
    Lease,
    Loaded,
    LoadPolicy,
    Need,
    NoAction,
    Pushed,
    Ready,
    SlotSeconds,
    StartJob,
    Stop,
    TensorEntry,
    UnknownFile,
    Working,
    common_protocol,
    decode_manifest,
    encode_manifest,
    shortened,
)
from digirl_dist.rollout.rollout import Finished, Happening, Rollout
from digirl_dist.rollout.slot import Slot
from digirl_dist.storage import atomic_files, parquet
from digirl_dist.storage.checkpoint import TensorInfo
from digirl_dist.storage.digest import file_digest
from digirl_dist.tasks import Key, Ticket
from digirl_dist.user_code.packing import unpack_file
from digirl_dist.worker_program.blobs import Blobs, FileBlobs
from digirl_dist.worker_program.link import Link, SocketLink
from digirl_dist.worker_program.remote_policies import HostPolicies

_TURN_S = 0.5

Tensors = dict[str, TensorEntry]


class Program:
    """One run on one worker."""

    def __init__(self, folder: JobFolder, link: Link, blobs: Blobs, orphan_s: float, package: str) -> None:
        self._folder = folder
        self._link = link
        self._blobs = blobs
        self._package = package
        self._orphan_s = orphan_s
        self._run = ""
        self._job: StartJob | None = None
        self._described: StartJob | None = None
        """The job that the host described last; it may still lack blobs."""
        self._announced: LoadPolicy | None = None
        self._pool = PoolSize(0, "")
        self._rollout: Rollout | None = None
        self._policies: Policies | HostPolicies | None = None
        self._tensors: dict[int, Tensors] = {}
        """The tensors of each version that is ready."""
        self._holding: tuple[list[Key], int] = ([], 0)
        """What heartbeats say of tickets; replaced once the host has been told how they ended."""
        self._order = 0
        self._doing: tuple[str, float] = ("waiting for a job", time.monotonic())
        self.stopped = False
        """True once the host has said that this run is over here."""

    def run(self) -> None:
        """Serve until the host says stop or is gone for good."""
        self._link.start(self._state_of_work)
        try:
            while not self.stopped and not self._is_orphaned():
                self._turn()
        finally:
            if self._rollout is not None:
                self._rollout.close()
            self._link.close()

    def _turn(self) -> None:
        self._doing = ("waiting", time.monotonic())
        if self._rollout is None:
            select.select([self._link], [], [], _TURN_S)
        else:
            self._act(self._rollout)
        for message in self._link.received():
            self._doing = (type(message).__name__, time.monotonic())
            self._obey(message)
        held = [] if self._rollout is None else [ticket.key for ticket in self._rollout.held()]
        self._holding = (held, self._order)

    def _act(self, rollout: Rollout) -> None:
        """One turn of the rollout. What the agent raises ends the job, and the host is told."""
        try:
            happened = rollout.turn(_TURN_S, [self._link])
        except Exception:
            self._link.send(Broken("act", shortened(traceback.format_exc(limit=-6))))
            rollout.close()
            self._rollout, self._job = None, None
        else:
            for happening in happened:
                self._report(happening)

    def _is_orphaned(self) -> bool:
        """True when no host came back in time and nothing is running any more.

        Without a host, an episode whose actions are decided there goes no further.
        """
        if time.monotonic() - self._link.last_heard < self._orphan_s:
            return False
        if self._rollout is None:
            return True
        hopeless = self._rollout.held() if isinstance(self._policies, HostPolicies) else self._rollout.tickets
        self._rollout.drop({ticket.key for ticket in hopeless})
        return not self._rollout.held()

    def _state_of_work(self) -> Heartbeat:
        doing, since = self._doing
        held, order = self._holding
        now = time.monotonic()
        return Heartbeat(
            doing=doing,
            for_s=round(now - since, 3),
            unheard_s=round(now - self._link.last_heard, 3),
            slots=[] if self._rollout is None else self._rollout.waits(),
            held=held,
            order=order,
            in_service=self._in_service(),
        )

    def _obey(self, message: HostMessage) -> None:
        """One message of the host; whatever fails here is told to it."""
        try:
            match message:
                case Hello(run, protocols):
                    self._greet(run, protocols)
                case StartJob():
                    self._described = message
                    self._take_job(message)
                case LoadPolicy():
                    self._announced = message
                    self._load(message)
                case Pushed("job"):
                    assert self._described is not None, "no job was described"
                    self._take_job(self._described)
                case Pushed("policy"):
                    assert self._announced is not None, "no policy was announced"
                    self._load(self._announced)
                case Action() | NoAction():
                    self._host_policies.receive(message)
                case Lease(order, tickets):
                    self._order = order
                    self._lease(tickets)
                case Drop(order, keys, lost_to):
                    self._order = order
                    self._drop(keys, lost_to)
                case Landed(episodes):
                    self._forget(episodes)
                case Collected():
                    self._settle_accounts()
                case Stop():
                    self.stopped = True
        except DigirlDistError as error:
            self._link.send(Broken(type(message).__name__, shortened(str(error))))
        except Exception:
            self._link.send(Broken(type(message).__name__, shortened(traceback.format_exc(limit=-6))))

    def _greet(self, run: str, protocols: Sequence[int]) -> None:
        if self._run not in ("", run):
            self._link.send(Broken("run", f"this folder serves run {self._run}, not {run}"))
            return
        protocol = common_protocol(protocols)
        if protocol is None:
            self._link.send(Broken("hello", f"the host speaks the protocols {protocols}, this program {SPOKEN}"))
            return
        self._run = run
        self._order = 0
        self._link.send(Ready(protocol, self._package, platform.python_version(), os.getpid()))
        if isinstance(self._policies, HostPolicies):
            self._policies.ask_again()

    def _announce_spooled(self) -> None:
        """Announces episodes of this run that no host has acknowledged; and what is none, with the reason."""
        for path in sorted(self._folder.episodes.glob("*.json")):
            try:
                self._link.send(EpisodeReady(_read_manifest(path, self._run)))
            except TrajectoryError as error:
                self._link.send(UnknownFile(path.stem[:256], shortened(str(error))))

    def _take_job(self, job: StartJob) -> None:
        """Builds policy and slots as the host describes them; a job that is already running stays as it is."""
        missing = self._blobs.missing(job.packed)
        if missing:
            self._link.send(Need("job", missing))
            return
        if job != self._job or self._rollout is None:
            self._start_job(job)
        held = [] if self._rollout is None else [ticket.key for ticket in self._rollout.held()]
        self._link.send(Working(self._pool.slots, self._pool.reason, held))
        self._announce_spooled()

    def _start_job(self, job: StartJob) -> None:
        if self._rollout is not None:
            self._rollout.close()
        self._job, self._announced, self._tensors = None, None, {}
        self._policies = self._deciders(job)
        emulator = self._blobs.file(job.emulator)
        auto = job.slots is None
        self._pool = PoolSize(job.slots, "") if job.slots is not None else choose(Machine.here(job.sharers), job.needs)
        slots = [Slot(k, emulator, job.limits, self._folder.slot_log(k)) for k in range(self._pool.slots)]
        for slot in slots:
            slot.start()
        self._rollout = Rollout(job.name, slots, self._policies, job.max_steps, shrink=auto)
        self._job = job

    def _deciders(self, job: StartJob) -> Policies | HostPolicies:
        """Where the host decides it sends no agent, and nothing heavy is imported here."""
        if job.agent is None:
            return HostPolicies(self._link, job.answer_s)
        import torch

        torch.set_num_threads(job.torch_threads)
        return Policies(unpack_file(self._blobs.file(job.agent)))

    @property
    def _host_policies(self) -> HostPolicies:
        assert isinstance(self._policies, HostPolicies), "an answer, but nothing was asked"
        return self._policies

    def _load(self, announced: LoadPolicy) -> None:
        """Makes a policy ready to act, or says which of its tensors are not here."""
        assert self._policies is not None and self._rollout is not None and self._job is not None, "no job yet"
        self._rollout.idle("push")
        digests = {entry.digest for entry in announced.tensors.values()}
        missing = self._blobs.missing(sorted(digests))
        if missing:
            self._link.send(Need("policy", missing))
            return
        try:
            self._make_ready(self._policies, announced)
        except CheckpointError:  # an altered tensor was deleted: ask for it again
            self._load(announced)
            return
        version = announced.version
        self._policies.retire({version, *(ticket.policy_version for ticket in self._rollout.held())})
        self._tensors = {number: self._tensors[number] for number in self._policies}
        self._blobs.keep(digests, self._job.packed)
        self._rollout.idle("barrier")
        self._link.send(Loaded(version))

    def _make_ready(self, policies: Policies | HostPolicies, announced: LoadPolicy) -> None:
        """Loads the policy, unless it is there or one with the very same weights is."""
        version, tensors = announced.version, announced.tensors
        if version in policies:
            return
        same = next((other for other in policies if self._tensors.get(other) == tensors), None)
        if same is None:
            infos = {name: TensorInfo(one.digest, one.dtype, tuple(one.shape)) for name, one in tensors.items()}
            state = {name: self._blobs.tensor(info) for name, info in infos.items()}
            policies.load(version, _cast_back(state, tensors))
        else:
            policies.same(version, same)
        self._tensors[version] = tensors

    def _lease(self, tickets: Sequence[Ticket]) -> None:
        assert self._rollout is not None, "a lease before the job"
        held = {ticket.key for ticket in self._rollout.held()}
        self._rollout.lease([ticket for ticket in tickets if ticket.key not in held])

    def _settle_accounts(self) -> None:
        """The host has all it wanted of this iteration: say where the slots' time went. From now on it learns."""
        if self._rollout is not None:
            self._link.send(SlotSeconds(self._rollout.spent()))
            self._rollout.idle("update")

    def _drop(self, keys: Sequence[Key], lost_to: str) -> None:
        if self._rollout is not None:
            self._rollout.drop(set(keys), lost_to)

    def _forget(self, episodes: list[str]) -> None:
        """The host has these safely, or knows that they are none: delete them, the manifest first."""
        for episode_id in episodes:
            self._folder.manifest(episode_id).unlink(missing_ok=True)
            self._folder.episode(episode_id).unlink(missing_ok=True)

    def _report(self, happening: Happening) -> None:
        if isinstance(happening, Finished):
            self._deliver(happening)
        else:
            self._link.send(happening)

    def _in_service(self) -> int:
        return 0 if self._rollout is None else self._rollout.in_service()

    def _deliver(self, finished: Finished) -> None:
        try:
            self._link.send(EpisodeReady(self._spool(finished)))
        except OSError as error:  # a full disk: no fault of the ticket, which the host takes back with the others
            reason = f"the episode cannot be written to {self._folder.episodes}: {error.strerror}"
            self._link.send(Broken("disk", reason))

    def _spool(self, finished: Finished) -> EpisodeManifest:
        """Put the episode into the folder: its rows first, its manifest last.

        Unflushed, so that no slot waits for the disk: what a power cut damages here is refused and run again.
        """
        trajectory = finished.trajectory
        path = self._folder.episode(trajectory.episode_id)
        parquet.write(path, [trajectory], flushed=False)
        manifest = EpisodeManifest(
            run=self._run,
            key=trajectory.ticket.key,
            attempt=trajectory.ticket.attempt,
            policy_version=trajectory.ticket.policy_version,
            episode_id=trajectory.episode_id,
            size=path.stat().st_size,
            digest=file_digest(path),
            slot=trajectory.slot,
            seconds=finished.ended_at - finished.started_at,
            age_s=time.monotonic() - finished.ended_at,
            spent=finished.spent,
        )
        said = encode_manifest(manifest).decode()
        atomic_files.write_text(self._folder.manifest(trajectory.episode_id), said, flushed=False)
        return manifest


def _read_manifest(path: Path, run: str) -> EpisodeManifest:
    """Raises TrajectoryError for one that is damaged or of another run."""
    try:
        manifest = decode_manifest(path.read_bytes())
    except (OSError, ProtocolError) as error:
        raise TrajectoryError(f"{path.name} is not a manifest: {error}") from error
    if manifest.run != run:
        raise TrajectoryError(f"{path.name} is of run {manifest.run}, not of {run}")
    return manifest


def _cast_back(state: dict[str, Any], tensors: Tensors) -> dict[str, Any]:
    """Gives tensors that were cast for the wire the policy's own dtype."""
    cast = {name: entry.own_dtype for name, entry in tensors.items() if entry.own_dtype is not None}
    if not cast:
        return state
    import torch

    return {name: tensor.to(getattr(torch, cast[name])) if name in cast else tensor for name, tensor in state.items()}


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--folder", type=Path, required=True)
    parser.add_argument("--orphan-s", type=float, required=True)
    parser.add_argument("--package", default="", help="digest of the installed package, told to the host")
    options = parser.parse_args()
    folder = JobFolder(options.folder.resolve())
    folder.create()
    with folder.lock.open("a+") as lock:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            print(f"another program serves {folder.root}", file=sys.stderr)
            return 1
        lock.truncate(0)
        print(os.getpid(), file=lock, flush=True)
        os.chdir(folder.root)
        program = Program(folder, SocketLink(folder), FileBlobs(folder), options.orphan_s, options.package)
        program.run()
        if program.stopped:
            shutil.rmtree(folder.root, ignore_errors=True)
    return 0


if __name__ == "__main__":
    sys.exit(main())
