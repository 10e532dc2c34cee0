"""The worker program as a state machine, from the greeting to the end.

Messages of the host, happenings on the slots, results of effects and the time go in; effects come out. There is no
thread, slot, file, link or clock in here: ``Program`` is the rim that has them, and a test or a simulation may be
another.
"""

from __future__ import annotations

import math
import traceback
from collections.abc import Collection, Mapping, Sequence

from digirl_dist.capacity import PoolSize
from digirl_dist.errors import DigirlDistError, ProtocolError
from digirl_dist.protocol.messages import (
    MOST_DIGESTS,
    MOST_NAME,
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
    Working,
    common_protocol,
    shortened,
)
from digirl_dist.rollout.rollout import Finished, Happening
from digirl_dist.tasks import Key, Ticket
from digirl_dist.worker_program.effects import (
    AskAgain,
    CloseSlots,
    CountSeconds,
    DeleteEpisodes,
    DropTickets,
    Effect,
    End,
    FindMissing,
    IdleBecause,
    KeepBlobs,
    KeepVersions,
    LeaseTickets,
    ListSpooled,
    LoadTensors,
    PassAnswer,
    Send,
    ShareTensors,
    SpooledFile,
    StartSlots,
    What,
    WriteEpisode,
)

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

Effects = list[Effect]
Tensors = Mapping[str, TensorEntry]


class ProgramCore:
    """One run on one worker. ``now`` and ``heard_at`` are monotonic seconds of this machine.

    Every method returns what is to be done, in order. An effect with a result hands it back, and what comes out then is
    done, before the next effect and before anything else goes in. If an effect raises, ``failed`` is called and the
    rest is left undone. ``settle`` is called whenever all is done. Only ``heartbeat`` may be called from other threads.
    """

    def __init__(
        self, orphan_s: float, package: str, python: str, pid: int, machine: MachineFacts | None = None
    ) -> None:
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

    def settle(self) -> None:
        """Lets heartbeats tell what is held by now, as all effects are carried out."""
        self._settled = (list(self._held), self._order)

    def heartbeat(self, now: float, heard_at: float, slots: list[SlotWait], in_service: int) -> Heartbeat:
        """Tells what the program does and holds. ``heard_at`` is when the host was heard last."""
        doing, since = self._doing or ("starting", now)
        held, order = self._settled
        for_s, unheard_s = round(max(0.0, now - since), 3), round(max(0.0, now - heard_at), 3)
        return Heartbeat(doing, for_s, unheard_s, slots, held, order, in_service)

    def tick(self, now: float, heard_at: float, held: Sequence[Ticket], queued: Collection[Key]) -> Effects:
        """Ends the program when no host came back in time and nothing runs any more. Called now and then.

        ``held`` is what the slots say that they hold, after everything that happened on them has gone in: heartbeats
        tell that, whatever it should be. Of an orphan, tickets that no slot has begun (``queued``) are dropped; without
        a host, an episode goes no further if its actions are decided there, or its policy has not come yet.
        """
        self._held = {ticket.key: ticket for ticket in held}
        if now - heard_at < self._orphan_s:
            self._alone_since = math.inf
            return []
        self._alone_since = min(self._alone_since, now)
        if now - self._alone_since < _GRACE_S:
            return []
        if self._job is None:
            return [End(stopped=False)]
        alone = set() if self._job.agent is None else self._ready.keys()
        effects = self._drop(
            [key for key, ticket in self._held.items() if key in queued or ticket.policy_version not in alone], "faults"
        )
        return effects if self._held else [*effects, End(stopped=False)]

    def receive(self, message: HostMessage, now: float) -> Effects:
        """Acts on one message of the host."""
        self._doing = (_DOING.get(type(message), "act on what the host says"), now)
        try:
            return self._receive(message)
        except ProtocolError as error:
            return self.failed(type(message).__name__, error)

    def happened(self, happening: Happening) -> Effects:
        """Tells the host what happened on a slot; an episode is written first."""
        if isinstance(happening, Finished):
            return [WriteEpisode(self._run, happening)]
        if isinstance(happening, EpisodeFailed):
            self._held.pop(happening.key, None)
        return [Send(happening)]

    def failed(self, during: str, error: Exception) -> Effects:
        """Tells the host that what it asked for, or what had to be done, cannot be."""
        return [Send(Broken(during, _reason(error)))]

    def act_failed(self, error: Exception) -> Effects:
        """Ends the job, whose agent or slots raised what nobody expects."""
        self._forget_job()
        return [*self.failed("act", error), CloseSlots()]

    def found_missing(self, what: What, missing: Sequence[str]) -> Effects:
        """Asks for the blobs that are missing, or goes on if there are none."""
        if missing:
            return [Send(Need(what, list(missing[:MOST_DIGESTS])))]  # what else is missing is asked for once these came
        return self._start() if what == "job" else self._load()

    def started(self, job: StartJob, capacity: PoolSize) -> Effects:
        """Takes in that the job has this many slots."""
        self._job, self._capacity = job, capacity
        return self._working()

    def loaded(self, version: int) -> Effects:
        """Episodes can act with this version: what no episode needs any more may go."""
        announced = self._announcement()
        self._ready[version] = announced.tensors
        keep = frozenset((version, *(ticket.policy_version for ticket in self._held.values())))
        self._ready = {ready: tensors for ready, tensors in self._ready.items() if ready in keep}
        return [
            KeepVersions(keep),
            IdleBecause("barrier"),
            Send(Loaded(version)),
        ]

    def altered(self) -> Effects:
        """Asks the host again for a tensor that was not what its digest says, and was deleted."""
        return self._look_for_tensors(self._announcement())

    def counted(self, seconds: dict[str, float]) -> Effects:
        """Tells the host, which learns from now on, where the slots' time went."""
        told = {activity: max(0.0, spent) for activity, spent in seconds.items()}  # differences, which round
        return [Send(SlotSeconds(told)), IdleBecause("update")]

    def written(self, manifest: EpisodeManifest) -> Effects:
        self._held.pop(manifest.key, None)
        return [Send(EpisodeReady(manifest))]

    def not_written(self, key: Key, reason: str) -> Effects:
        """Tells the host that the disk is full: that is no fault of the ticket, which goes back with the others."""
        self._held.pop(key, None)
        return self.disk_failed(reason)

    def disk_failed(self, reason: str) -> Effects:
        """Tells the host that a file cannot be read, written or deleted; it tries again over a new connection."""
        return [Send(Broken("disk", shortened(reason)))]

    def spooled(self, files: Sequence[SpooledFile]) -> Effects:
        """Announces episodes that lie ready, and what is none of this run's, with the reason, which is deleted."""
        return [
            Send(UnknownFile(shortened(file.name, MOST_NAME), shortened(file.reason)))
            if file.manifest is None
            else Send(EpisodeReady(file.manifest))
            for file in files
        ]

    def _receive(self, message: HostMessage) -> Effects:
        match message:
            case Hello():
                return self._greet(message)
            case _ if self._refuses:
                return []
            case StartJob():
                self._described = message
                return self._look_for_packed(message)
            case LoadPolicy():
                return self._announce(message)
            case Pushed("job"):
                return self._look_for_packed(self._described)
            case Pushed():
                return self._look_for_tensors(self._announcement())
            case Action() | NoAction():
                return self._answer(message)
            case Lease(order, tickets):
                self._order = order
                return self._lease(tickets)
            case Drop(order, keys, lost_to):
                self._order = order
                return self._drop(keys, lost_to)
            case Landed(episodes):
                return [DeleteEpisodes(episodes)]
            case Collected():
                return [] if self._job is None else [CountSeconds()]
            case Stop():
                return [End(stopped=True)]
            case Ping():
                return []

    def _greet(self, hello: Hello) -> Effects:
        refusal = self._refusal(hello)
        self._refuses = refusal is not None
        if refusal is not None:
            return [Send(refusal)]
        protocol = common_protocol(hello.protocols)
        assert protocol is not None, "else it is refused"
        if hello.host != self._host:
            self._former_hosts.add(self._host)
        self._run, self._host = hello.run, hello.host
        self._order = 0
        effects: Effects = [Send(Ready(protocol, self._package, self._python, self._pid, self._machine))]
        if self._job is not None and self._job.agent is None:
            effects.append(AskAgain())  # this host knows of no question yet
        return effects

    def _refusal(self, hello: Hello) -> Broken | None:
        if self._run not in ("", hello.run):
            return Broken("run", f"this folder serves run {self._run}, not {hello.run}")
        if common_protocol(hello.protocols) is None:
            reason = f"the host speaks the protocols {list(hello.protocols)}, this program {list(SPOKEN)}"
            return Broken("hello", reason)
        if hello.host and hello.host in self._former_hosts:
            return Broken("host", f"another host of the same run, {self._host}, has taken its program over")
        return None

    def _look_for_packed(self, job: StartJob | None) -> Effects:
        if job is None:
            raise ProtocolError("no job was described")
        return [FindMissing("job", job.packed)]

    def _start(self) -> Effects:
        """Starts the job that was described; one that is already running stays as it is."""
        job = self._described
        assert job is not None, "found what belongs to no job"
        if job == self._job:
            return [*self._drop(self._without_policy(job), "faults"), *self._working()]
        self._forget_job()
        return [CloseSlots(), StartSlots(job)]

    def _forget_job(self) -> None:
        self._job, self._announced = None, None
        self._ready, self._held = {}, {}

    def _without_policy(self, job: StartJob) -> list[Key]:
        """Tickets that wait for a policy: a new host may know only later ones, and the same one leases them again."""
        if job.agent is None:
            return []
        return [key for key, ticket in self._held.items() if ticket.policy_version not in self._ready]

    def _working(self) -> Effects:
        return [Send(Working(self._capacity.slots, self._capacity.reason, list(self._held))), ListSpooled(self._run)]

    def _announce(self, policy: LoadPolicy) -> Effects:
        """Makes room for a new policy; deltas of its tensors are told against the one that was announced before."""
        job, before = self._running(), self._announced
        self._announced = policy
        looked = self._look_for_tensors(policy)
        if before is None or before.version == policy.version:
            return looked
        return [KeepBlobs(frozenset((*_digests(before), *_digests(policy))), job.packed), *looked]

    def _look_for_tensors(self, policy: LoadPolicy) -> Effects:
        self._running()
        return [IdleBecause("push"), FindMissing("policy", _digests(policy))]

    def _load(self) -> Effects:
        """Loads the announced policy, unless it is there or one with the very same weights is.

        A run folder that was copied, or restored from a backup, may bring other weights under a version's number.
        """
        policy = self._announcement()
        if self._ready.get(policy.version) == policy.tensors:
            return self.loaded(policy.version)
        for other, tensors in self._ready.items():
            if tensors == policy.tensors:
                return [ShareTensors(policy.version, other)]
        return [LoadTensors(policy)]

    def _running(self) -> StartJob:
        if self._job is None:
            raise ProtocolError("no job runs yet")
        return self._job

    def _announcement(self) -> LoadPolicy:
        if self._announced is None:
            raise ProtocolError("no policy was announced")
        return self._announced

    def _answer(self, answer: Action | NoAction) -> Effects:
        if self._running().agent is not None:
            raise ProtocolError("an answer, but nothing was asked")
        return [PassAnswer(answer)]

    def _lease(self, tickets: Sequence[Ticket]) -> Effects:
        self._running()
        new = {ticket.key: ticket for ticket in tickets if ticket.key not in self._held}
        self._held.update(new)
        return [LeaseTickets(list(new.values()))]

    def _drop(self, keys: Sequence[Key], lost_to: str) -> Effects:
        for key in keys:
            self._held.pop(key, None)
        return [DropTickets(keys, lost_to)] if self._job is not None and keys else []


def _digests(policy: LoadPolicy) -> list[str]:
    return sorted({entry.digest for entry in policy.tensors.values()})


def _reason(error: Exception) -> str:
    """Returns what the error says, with the innermost calls if it was not foreseen."""
    if isinstance(error, DigirlDistError):
        return shortened(str(error))
    return shortened("".join(traceback.format_exception(error, limit=-6)))
