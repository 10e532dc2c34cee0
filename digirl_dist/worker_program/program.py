"""The resident program of a worker: keeps policy and emulators warm, runs leased tickets, spools what was collected.

``python -m digirl_dist.worker_program.program --folder DIR --orphan-s 60`` is started by ``attach`` and ends by itself
when no host has been heard of for that long, after it has finished the episodes under way.
"""

from __future__ import annotations

import argparse
import fcntl
import json
import os
import platform
import select
import shutil
import sys
import time
import traceback
from dataclasses import asdict
from pathlib import Path
from typing import Any

from digirl_dist.capacity import Choice, Machine, Needs, choose
from digirl_dist.errors import CheckpointError, DigirlDistError, TrajectoryError
from digirl_dist.inference.local import Policies
from digirl_dist.protocol.job_folder import PROTOCOL, EpisodeManifest, JobFolder
from digirl_dist.rollout.rollout import Acting, Failed, Finished, Happening, Rollout, SlotChanged
from digirl_dist.rollout.slot import Slot, SlotLimits
from digirl_dist.storage import atomic_files, parquet
from digirl_dist.storage.checkpoint import TensorInfo
from digirl_dist.storage.digest import file_digest
from digirl_dist.tasks import Ticket
from digirl_dist.types import Json
from digirl_dist.user_code.packing import unpack_file
from digirl_dist.worker_program.blobs import Blobs, FileBlobs
from digirl_dist.worker_program.link import Link, SocketLink
from digirl_dist.worker_program.remote_policies import HostPolicies

_TURN_S = 0.5


class Program:
    """One run on one worker."""

    def __init__(self, folder: JobFolder, link: Link, blobs: Blobs, orphan_s: float, package: str) -> None:
        self._folder = folder
        self._link = link
        self._blobs = blobs
        self._package = package
        self._orphan_s = orphan_s
        self._run = ""
        self._job: dict[str, Any] = {}
        self._pool = Choice(0, "")
        self._rollout: Rollout | None = None
        self._policies: Policies | HostPolicies | None = None
        self._manifests: dict[int, dict[str, list[Any]]] = {}
        """The tensors of each version that is ready."""
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
            self._doing = (message["type"], time.monotonic())
            self._obey(message)

    def _act(self, rollout: Rollout) -> None:
        """One turn of the rollout. What the agent raises ends the job, and the host is told."""
        try:
            happened = rollout.turn(_TURN_S, [self._link])
        except Exception:
            self._link.send("broken", during="act", reason=traceback.format_exc(limit=-6))
            rollout.close()
            self._rollout, self._job = None, {}
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

    def _state_of_work(self) -> dict[str, Json]:
        doing, since = self._doing
        slots = [] if self._rollout is None else [asdict(wait) for wait in self._rollout.waits()]
        now = time.monotonic()
        unheard_s = now - self._link.last_heard
        return {"doing": doing, "for_s": round(now - since, 3), "unheard_s": round(unheard_s, 3), "slots": slots}

    def _obey(self, message: dict[str, Any]) -> None:
        """One message of the host; whatever fails here is told to it."""
        kind = message.pop("type")
        try:
            match kind:
                case "hello":
                    self._greet(**message)
                case "job":
                    self._take_job(message)
                case "checkpoint":
                    self._load(**message)
                case "decided":
                    self._host_policies.receive(message)
                case "lease":
                    self._lease(message["tickets"])
                case "drop":
                    self._drop(message["keys"], message["lost_to"])
                case "landed":
                    self._forget(message["episodes"])
                case "collected":
                    self._settle_accounts()
                case "stop":
                    self.stopped = True
        except DigirlDistError as error:
            self._link.send("broken", during=kind, reason=str(error))
        except Exception:
            self._link.send("broken", during=kind, reason=traceback.format_exc(limit=-6))

    def _greet(self, run: str) -> None:
        if self._run not in ("", run):
            self._link.send("broken", during="hello", reason=f"this folder serves run {self._run}, not {run}")
            return
        self._run = run
        held = [] if self._rollout is None else [list(ticket.key) for ticket in self._rollout.held()]
        self._link.send(
            "ready",
            protocol=PROTOCOL,
            package=self._package,
            python=platform.python_version(),
            pid=os.getpid(),
            held=held,
            **self._spooled(),
        )
        if isinstance(self._policies, HostPolicies):
            self._policies.ask_again()

    def _spooled(self) -> dict[str, Json]:
        """Episodes of this run that no host has acknowledged; and what is none, with the reason."""
        spool, refused = [], []
        for path in sorted(self._folder.episodes.glob("*.json")):
            try:
                spool.append(_read_manifest(path, self._run).to_json())
            except TrajectoryError as error:
                refused.append({"episode": path.stem, "reason": str(error)})
        return {"spool": spool, "refused": refused}

    def _take_job(self, job: dict[str, Any]) -> None:
        """Build policy and slots as the host describes them; a job that is already running stays as it is."""
        missing = self._blobs.missing(_packed(job))
        if missing:
            self._link.send("need", what="job", digests=missing)
            return
        if job != self._job:
            self._start_job(job)
        self._link.send("working", slots=self._pool.slots, reason=self._pool.reason)

    def _start_job(self, job: dict[str, Any]) -> None:
        if self._rollout is not None:
            self._rollout.close()
        self._job = {}
        self._manifests = {}
        self._policies = self._deciders(job)
        limits = SlotLimits(**job["limits"])
        emulator = self._blobs.file(job["emulator"])
        auto = job["slots"] is None
        self._pool = choose(Machine.here(job["sharers"]), Needs(**job["needs"])) if auto else Choice(job["slots"], "")
        slots = [Slot(k, emulator, limits, self._folder.slot_log(k)) for k in range(self._pool.slots)]
        for slot in slots:
            slot.start()
        self._rollout = Rollout(job["name"], slots, self._policies, job["max_steps"], shrink=auto)
        self._job = job

    def _deciders(self, job: dict[str, Any]) -> Policies | HostPolicies:
        """Where the host decides it sends no agent, and nothing heavy is imported here."""
        if job["agent"] is None:
            return HostPolicies(self._link, job["answer_s"])
        import torch

        torch.set_num_threads(job["torch_threads"])
        return Policies(unpack_file(self._blobs.file(job["agent"])))

    @property
    def _host_policies(self) -> HostPolicies:
        assert isinstance(self._policies, HostPolicies), "an answer, but nothing was asked"
        return self._policies

    def _load(self, version: int, tensors: dict[str, list[Any]]) -> None:
        """Make a checkpoint ready to act, or say which of its tensors are not here."""
        assert self._policies is not None and self._rollout is not None, "a checkpoint before the job"
        self._rollout.idle("push")
        digests = {str(entry[0]) for entry in tensors.values()}
        missing = self._blobs.missing(sorted(digests))
        if missing:
            self._link.send("need", what="checkpoint", digests=missing)
            return
        try:
            self._make_ready(self._policies, version, tensors)
        except CheckpointError:  # an altered tensor was deleted: ask for it again
            self._load(version, tensors)
            return
        self._policies.retire({version, *(ticket.policy_version for ticket in self._rollout.held())})
        self._manifests = {number: self._manifests[number] for number in self._policies}
        self._blobs.keep(digests, _packed(self._job))
        self._rollout.idle("barrier")
        self._link.send("loaded", version=version)

    def _make_ready(self, policies: Policies | HostPolicies, version: int, tensors: dict[str, list[Any]]) -> None:
        """Load the policy, unless it is there or one with the very same weights is."""
        if version in policies:
            return
        same = next((other for other in policies if self._manifests.get(other) == tensors), None)
        if same is None:
            infos = {name: TensorInfo(info[0], info[1], tuple(info[2])) for name, info in tensors.items()}
            state = {name: self._blobs.tensor(info) for name, info in infos.items()}
            policies.load(version, _cast_back(state, tensors))
        else:
            policies.same(version, same)
        self._manifests[version] = tensors

    def _lease(self, tickets: list[dict[str, Json]]) -> None:
        assert self._rollout is not None, "a lease before the job"
        held = {ticket.key for ticket in self._rollout.held()}
        new = [Ticket.from_json(ticket) for ticket in tickets]
        self._rollout.lease([ticket for ticket in new if ticket.key not in held])

    def _settle_accounts(self) -> None:
        """The host has all it wanted of this iteration: say where the slots' time went. From now on it learns."""
        if self._rollout is not None:
            self._link.send("spent", seconds=self._rollout.spent())
            self._rollout.idle("update")

    def _drop(self, keys: list[list[int]], lost_to: str) -> None:
        if self._rollout is not None:
            self._rollout.drop({(iteration, index) for iteration, index in keys}, lost_to)

    def _forget(self, episodes: list[str]) -> None:
        """The host has these safely, or knows that they are none: delete them, the manifest first."""
        for episode_id in episodes:
            self._folder.manifest(episode_id).unlink(missing_ok=True)
            self._folder.episode(episode_id).unlink(missing_ok=True)

    def _report(self, happening: Happening) -> None:
        match happening:
            case Finished():
                self._deliver(happening)
            case Failed(ticket, slot, reason):
                self._link.send("failed", iteration=ticket.iteration, index=ticket.index, slot=slot, reason=reason)
            case Acting(slot, ticket):
                self._link.send("acting", iteration=ticket.iteration, index=ticket.index, slot=slot)
            case SlotChanged(slot, state, reason):
                self._link.send("slot", slot=slot, state=state, reason=reason, in_service=self._in_service())

    def _in_service(self) -> int:
        return 0 if self._rollout is None else self._rollout.in_service()

    def _deliver(self, finished: Finished) -> None:
        try:
            self._link.send("episode", manifest=self._spool(finished).to_json())
        except OSError as error:  # a full disk: no fault of the ticket, which the host takes back with the others
            reason = f"the episode cannot be written to {self._folder.episodes}: {error.strerror}"
            self._link.send("broken", during="disk", reason=reason)

    def _spool(self, finished: Finished) -> EpisodeManifest:
        """Put the episode into the folder: its rows first, its manifest last.

        Unflushed, so that no slot waits for the disk: what a power cut damages here is refused and run again.
        """
        trajectory = finished.trajectory
        path = self._folder.episode(trajectory.episode_id)
        parquet.write(path, [trajectory], flushed=False)
        manifest = EpisodeManifest(
            run=self._run,
            iteration=trajectory.ticket.iteration,
            index=trajectory.ticket.index,
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
        atomic_files.write_json(self._folder.manifest(trajectory.episode_id), manifest.to_json(), flushed=False)
        return manifest


def _read_manifest(path: Path, run: str) -> EpisodeManifest:
    """Raises TrajectoryError for one that is damaged or of another run."""
    try:
        manifest = EpisodeManifest.from_json(json.loads(path.read_text()))
    except (OSError, ValueError) as error:
        raise TrajectoryError(f"{path.name} is not a manifest: {error}") from error
    if manifest.run != run:
        raise TrajectoryError(f"{path.name} is of run {manifest.run}, not of {run}")
    return manifest


def _packed(job: dict[str, Any]) -> list[str]:
    """Digests of the packed classes that the job needs."""
    return [job[kind] for kind in ("agent", "emulator") if job[kind] is not None]


def _cast_back(state: dict[str, Any], manifest: dict[str, list[Any]]) -> dict[str, Any]:
    """Tensors that were cast for the wire get the policy's own dtype, which their entry names fourth."""
    cast = {name: entry[3] for name, entry in manifest.items() if len(entry) > 3}
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
