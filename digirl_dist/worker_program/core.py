"""The worker program as a state machine, from the greeting to the end.

Messages of the host, happenings on the slots and the time go in; calls of a ``Rim`` come out. There is no thread, slot,
file, link or clock in here: ``Program`` is the rim that has them, and a test or a simulation may be another.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Literal, Protocol

from digirl_dist.capacity import PoolSize
from digirl_dist.errors import DigirlDistError, ProtocolError, TrajectoryError, told
from digirl_dist.protocol.messages import (
    MOST_DIGESTS,
    SPOKEN,
    Action,
    Broken,
    Collected,
    Drop,
    EpisodeFailed,
    EpisodeManifest,
    EpisodeReady,
    Heartbeat,
    Hello,
    HostMessage,
    Landed,
    Lease,
    Loaded,
    LoadPolicy,
    MachineFacts,
    Need,
    NoAction,
    Ping,
    Pushed,
    Ready,
    SlotSeconds,
    SlotWait,
    StartJob,
    Stop,
    TensorEntry,
    UnknownFile,
    WorkerMessage,
    Working,
    common_protocol,
    shortened,
)
from digirl_dist.rollout.rollout import Finished, Happening
from digirl_dist.tasks import Key, Ticket

_GRACE_S = 2.0
"""A program that was stopped itself reads within this time what the host has said meanwhile."""
_DOING: Mapping[type[HostMessage], str] = {
    Hello: "greet the host",
    StartJob: "look for the files of the job",
    LoadPolicy: "look for the tensors of the policy",
    Pushed: "load what the host has sent",
    Lease: "begin episodes",
    Landed: "delete episodes that have landed",
}
"""What people read that the program does."""

Tensors = Mapping[str, TensorEntry]
What = Literal["job", "policy"]
"""What blobs are needed for."""


class DiskRefusedError(Exception):
    """A file of the job folder cannot be read, written or deleted; the text says why."""


class Rim(Protocol):
    """Slots, policies, files and the link of one program.

    A call that raises is reported to the host, and ends what led to it. Calls about files raise DiskRefusedError.
    """

    def send(self, message: WorkerMessage) -> None:
        """Sends the message to the host, if there is one."""

    def end(self, stopped: bool) -> None:
        """Ends the program, and removes its folder if the host said that the run is over here."""

    def start_slots(self, job: StartJob) -> PoolSize:
        """Starts the job's policies and slots, of which there are none."""

    def close_slots(self) -> None:
        """Ends all emulators and forgets all policies, if there are any."""

    def lease(self, tickets: Sequence[Ticket]) -> None:
        """Queues these tickets for the slots."""

    def drop(self, keys: Collection[Key], lost_to: str) -> None:
        """Forgets these tickets; the seconds of running episodes are booked under ``lost_to`` (see slot_time)."""

    def idle(self, activity: str) -> None:
        """Books slots without a ticket under this activity from now on (see slot_time)."""

    def spent(self) -> dict[str, float]:
        """Returns the slots' seconds by activity since the last call."""

    def load(self, policy: LoadPolicy) -> bool:
        """Loads the policy from its blobs. If a blob was altered, deletes that blob and returns False."""

    def share(self, version: int, other: int) -> None:
        """Acts with the tensors of version ``other`` in ``version`` too."""

    def keep_versions(self, versions: frozenset[int]) -> None:
        """Retires all other policy versions."""

    def answer(self, answer: Action | NoAction) -> None:
        """Gives the host's answer to the episode that asked."""

    def ask_again(self) -> None:
        """Repeats the questions that no host has answered."""

    def missing(self, what: What, digests: Sequence[str]) -> list[str]:
        """Returns which of these blobs are not on this machine."""

    def rests(self, digests: Sequence[str]) -> dict[str, int]:
        """Returns how many bytes interrupted transfers left of these blobs, of those of which there are any."""

    def keep_blobs(self, tensors: Collection[str], packed: Collection[str]) -> None:
        """Deletes blobs that are neither these tensors nor the packed factories."""

    def write(self, run: str, finished: Finished) -> EpisodeManifest:
        """Writes the episode's rows and then its manifest. Raises TrajectoryError for what no host would take."""

    def spooled(self, run: str) -> Sequence[EpisodeReady | UnknownFile]:
        """Returns what lies among the episodes, and deletes files that do not belong to this run."""

    def delete(self, names: Sequence[str]) -> None:
        """Deletes these episodes, the manifest first."""


class ProgramCore:
    """One run on one worker. ``now`` and ``heard_at`` are monotonic seconds of this machine.

    Only ``heartbeat`` may be called from other threads.
    """

    def __init__(
        self, rim: Rim, orphan_s: float, package: str, python: str, pid: int, machine: MachineFacts | None = None
    ) -> None:
        self._rim = rim
        self._orphan_s = orphan_s
        self._package = package
        self._python = python
        self._pid = pid
        self._machine = machine
        self._run = ""
        self._host = ""
        self._former_hosts: set[str] = set()
        """Hosts that another one took over from; two at once would take each other's program for ever."""
        self._refuses = False
        """Whether the host that is connected was refused: nothing else that it says counts."""
        self._described: StartJob | None = None
        """The job that the host described last; it may still lack blobs."""
        self._job: StartJob | None = None
        """The job that runs."""
        self._capacity = PoolSize(0, "")
        self._announced: LoadPolicy | None = None
        self._before: LoadPolicy | None = None
        """The policy that was announced before it, of another version."""
        self._ready: dict[int, Tensors] = {}
        """The tensors of each version that is ready."""
        self._held: dict[Key, Ticket] = {}
        self._order = 0
        self._settled: tuple[list[Key], int] = ([], 0)
        """What heartbeats say of tickets; replaced once the host has been told how they ended."""
        self._doing: tuple[str, float] | None = None
        self._alone_since = math.inf
        """When a turn found that the host had been gone for too long."""

    def wait(self, now: float) -> None:
        """Notes that the program waits for its slots and its host."""
        self._doing = ("waiting", now)

    def heartbeat(self, now: float, heard_at: float, slots: list[SlotWait], in_service: int) -> Heartbeat:
        """Tells what the program does and holds. ``heard_at`` is when the host was heard last."""
        doing, since = self._doing or ("starting", now)
        held, order = self._settled
        for_s, unheard_s = round(max(0.0, now - since), 3), round(max(0.0, now - heard_at), 3)
        return Heartbeat(doing, for_s, unheard_s, slots, held, order, in_service)

    def tick(self, now: float, heard_at: float, held: Sequence[Ticket], queued: Collection[Key]) -> None:
        """Ends the program when no host came back in time and nothing runs any more. Called now and then.

        ``held`` is what the slots say that they hold, after everything that happened on them has gone in: heartbeats
        tell that, whatever it should be. Of an orphan, tickets that no slot has begun (``queued``) are dropped; without
        a host, an episode goes no further if its actions are decided there, or its policy has not come yet.
        """
        self._held = {ticket.key: ticket for ticket in held}
        with self._reporting("tick"):
            if now - heard_at < self._orphan_s:
                self._alone_since = math.inf
                return
            self._alone_since = min(self._alone_since, now)
            if now - self._alone_since < _GRACE_S:
                return
            if self._job is not None:
                alone = set() if self._job.agent is None else self._ready.keys()
                held_by = self._held.items()
                waiting = [key for key, one in held_by if key in queued or one.policy_version not in alone]
                self._drop(waiting, "faults")
            if not self._held:
                self._rim.end(stopped=False)

    def receive(self, message: HostMessage, now: float) -> None:
        """Acts on one message of the host."""
        self._doing = (_DOING.get(type(message), "act on what the host says"), now)
        with self._reporting(type(message).__name__):
            self._receive(message)

    def happened(self, happening: Happening) -> None:
        """Tells the host what happened on a slot; an episode is written first."""
        with self._reporting("episode"):
            if isinstance(happening, EpisodeFailed):
                self._held.pop(happening.key, None)
            self._rim.send(self._written(happening) if isinstance(happening, Finished) else happening)

    def act_failed(self, error: Exception) -> None:
        """Ends the job, whose agent or slots raised what nobody expects."""
        self._forget_job()
        with self._reporting("act"):
            self._rim.send(_broken("act", error))
            self._rim.close_slots()

    @contextmanager
    def _reporting(self, during: str) -> Iterator[None]:
        """Tells the host what its body raises; after it, heartbeats tell what is held by then."""
        try:
            yield
        except DiskRefusedError as error:  # it tries again over a new connection
            self._rim.send(Broken("disk", shortened(str(error))))
        except Exception as error:
            self._rim.send(_broken(during, error))
        self._settled = (list(self._held), self._order)

    def _written(self, finished: Finished) -> EpisodeReady | EpisodeFailed:
        """Writes an episode. A full disk is no fault of the ticket, which goes back with the others."""
        episode = finished.trajectory
        self._held.pop(episode.ticket.key, None)
        try:
            return EpisodeReady(self._rim.write(self._run, finished))
        except TrajectoryError as error:  # the host would refuse it
            reason = f"the emulator or the agent exceeds the limits of an episode: {error}"
            return EpisodeFailed(episode.slot, episode.ticket.key, shortened(reason))

    def _receive(self, message: HostMessage) -> None:
        match message:
            case Hello():
                self._greet(message)
            case _ if self._refuses:
                pass
            case StartJob():
                self._described = message
                self._start_if_whole()
            case LoadPolicy():
                self._announce(message)
            case Pushed("job"):
                self._start_if_whole()
            case Pushed():
                self._load_if_whole()
            case Action() | NoAction():
                if self._running().agent is not None:
                    raise ProtocolError("an answer, but nothing was asked")
                self._rim.answer(message)
            case Lease(order, tickets):
                self._order = order
                self._lease(tickets)
            case Drop(order, keys, lost_to):
                self._order = order
                self._drop(keys, lost_to)
            case Landed(episodes):
                self._rim.delete(episodes)
            case Collected() if self._job is not None:
                spent = self._rim.spent().items()
                self._rim.send(SlotSeconds({activity: max(0.0, seconds) for activity, seconds in spent}))  # they round
                self._rim.idle("update")
            case Stop():
                self._rim.end(stopped=True)
            case Collected() | Ping():
                pass

    def _greet(self, hello: Hello) -> None:
        refusal = self._refusal(hello)
        self._refuses = refusal is not None
        if refusal is not None:
            self._rim.send(refusal)
            return
        protocol = common_protocol(hello.protocols)
        assert protocol is not None, "else it is refused"
        if hello.host != self._host:
            self._former_hosts.add(self._host)
        self._run, self._host = hello.run, hello.host
        self._order = 0
        self._rim.send(Ready(protocol, self._package, self._python, self._pid, self._machine))
        if self._job is not None and self._job.agent is None:
            self._rim.ask_again()  # this host knows of no question yet

    def _refusal(self, hello: Hello) -> Broken | None:
        if self._run not in ("", hello.run):
            return Broken("run", f"this folder serves run {self._run}, not {hello.run}")
        if common_protocol(hello.protocols) is None:
            reason = f"the host speaks the protocols {list(hello.protocols)}, this program {list(SPOKEN)}"
            return Broken("hello", reason)
        if hello.host and hello.host in self._former_hosts:
            return Broken("host", f"another host of the same run, {self._host}, has taken its program over")
        return None

    def _lacks(self, what: What, digests: Sequence[str]) -> bool:
        """Asks for the blobs that are missing; returns False if there are none."""
        missing = self._rim.missing(what, digests)[:MOST_DIGESTS]  # what else is missing is asked for once these came
        if missing:
            before = [] if what == "job" or self._before is None else _digests(self._before)
            gone = set(self._rim.missing(what, before)) if before else set()
            bases = [digest for digest in before if digest not in gone][:MOST_DIGESTS]
            self._rim.send(Need(what, missing, self._rim.rests(missing), bases))
        return bool(missing)

    def _start_if_whole(self) -> None:
        """Starts the job that was described; one that is already running stays as it is."""
        job = self._described
        if job is None:
            raise ProtocolError("no job was described")
        if self._lacks("job", job.packed):
            return
        if job == self._job:
            self._drop(self._without_policy(job), "faults")
        else:
            self._forget_job()
            self._rim.close_slots()
            self._capacity = self._rim.start_slots(job)
            self._job = job
        self._rim.send(Working(self._capacity.slots, self._capacity.reason, list(self._held)))
        self._announce_spooled()

    def _forget_job(self) -> None:
        self._job, self._announced, self._before = None, None, None
        self._ready, self._held = {}, {}

    def _without_policy(self, job: StartJob) -> list[Key]:
        """Tickets that wait for a policy: a new host may know only later ones, and the same one leases them again."""
        if job.agent is None:
            return []
        return [key for key, ticket in self._held.items() if ticket.policy_version not in self._ready]

    def _announce_spooled(self) -> None:
        for found in self._rim.spooled(self._run):
            self._rim.send(found)

    def _announce(self, policy: LoadPolicy) -> None:
        """Makes room for a new policy; deltas of its tensors are told against the one that was announced before."""
        job, before = self._running(), self._announced
        self._announced = policy
        if before is not None and before.version != policy.version:
            self._before = before
            self._rim.keep_blobs(frozenset((*_digests(before), *_digests(policy))), job.packed)
        self._load_if_whole()

    def _load_if_whole(self) -> None:
        """Loads the announced policy, unless it is there or one with the very same weights is.

        A run folder that was copied, or restored from a backup, may bring other weights under a version's number.
        """
        policy = self._announced
        if policy is None:
            raise ProtocolError("no policy was announced")
        self._rim.idle("push")
        if self._lacks("policy", _digests(policy)):
            return
        alike = [version for version, tensors in self._ready.items() if tensors == policy.tensors]
        if policy.version in alike:
            pass
        elif alike:
            self._rim.share(policy.version, alike[0])
        elif not self._rim.load(policy):
            self._load_if_whole()  # the altered tensor is missing now
            return
        self._loaded(policy)

    def _loaded(self, policy: LoadPolicy) -> None:
        """Lets all versions go that no episode needs any more."""
        self._ready[policy.version] = policy.tensors
        keep = frozenset((policy.version, *(ticket.policy_version for ticket in self._held.values())))
        self._ready = {version: tensors for version, tensors in self._ready.items() if version in keep}
        self._rim.keep_versions(keep)
        self._rim.idle("barrier")
        self._rim.send(Loaded(policy.version))

    def _running(self) -> StartJob:
        if self._job is None:
            raise ProtocolError("no job runs yet")
        return self._job

    def _lease(self, tickets: Sequence[Ticket]) -> None:
        self._running()
        new = {ticket.key: ticket for ticket in tickets if ticket.key not in self._held}
        self._held.update(new)
        self._rim.lease(list(new.values()))

    def _drop(self, keys: Sequence[Key], lost_to: str) -> None:
        for key in keys:
            self._held.pop(key, None)
        if self._job is not None and keys:
            self._rim.drop(keys, lost_to)


def _digests(policy: LoadPolicy) -> list[str]:
    return sorted({entry.digest for entry in policy.tensors.values()})


def _broken(during: str, error: Exception) -> Broken:
    return Broken(during, shortened(told(error)), foreseen=isinstance(error, DigirlDistError))
