"""One connection to one worker program as a state machine, from the greeting to the loss.

Messages of the program, commands of the host and the time go in; calls of a ``Rim`` come out. There is no thread, link,
file or clock in here: ``RemoteWorker`` is the rim that has them, and a test or a simulation may be another.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Iterator, Mapping, Sequence
from typing import Literal, Protocol

import msgspec

from digirl_dist.errors import JobError, LinkLostError, MisconductError, ProtocolError, TrajectoryError, WorkerError
from digirl_dist.fleet.conduct import Conduct
from digirl_dist.fleet.outgoing import Blob, PublishedPolicy
from digirl_dist.fleet.spec import Job, Spec
from digirl_dist.fleet.worker_events import ClaimsRefused, LeasesLost, PolicyLoaded, Said, WorkerEvent
from digirl_dist.inference.requests import InferenceFailure, InferenceReply, InferenceRequest
from digirl_dist.protocol.messages import (
    MOST_BYTES,
    MOST_HELD,
    MOST_HOST_BYTES,
    SPOKEN,
    Acting,
    Ask,
    Broken,
    Collected,
    Drop,
    EpisodeFailed,
    EpisodeReady,
    Heartbeat,
    Hello,
    HostMessage,
    Landed,
    Lease,
    Loaded,
    LoadPolicy,
    Need,
    Ping,
    Pushed,
    Ready,
    SlotChanged,
    SlotSeconds,
    Stop,
    Told,
    WorkerMessage,
    Working,
)
from digirl_dist.settings import LimitSettings
from digirl_dist.tasks import Key, Ticket

PING_S = 3.0
"""How often each program is told that its host is there."""


class ProgramSilent(LinkLostError):
    """The connection stands but the program does not answer: it must be replaced."""


class ProgramDeaf(LinkLostError):
    """The program says that it does not hear the host."""


class Rim(Protocol):
    """The link, the transfers, the policy and the collector of one connection. No call waits."""

    def send(self, message: HostMessage) -> None:
        """Sends the message to the program, and calls ``answered`` once an answer has gone.

        Raises ProtocolError for one that the program would refuse.
        """

    def push(self, need: Need, blobs: Sequence[Blob]) -> None:
        """Brings the blobs that are needed to the worker, then calls ``pushed`` with the bytes that were sent."""

    def decide(self, request: InferenceRequest) -> None:
        """Has the host's policy decide, then calls ``decided``."""

    def tell(self, event: WorkerEvent) -> None:
        """Tells the collector."""


class Session:
    """What the host knows of the program on one connection. ``now`` are monotonic seconds of the host, its sleep
    included.
    """

    def __init__(self, rim: Rim, spec: Spec, job: Job, limits: LimitSettings, policy: PublishedPolicy | None) -> None:
        self._rim = rim
        self._spec = spec
        self._job = job
        self._limits = limits
        self._policy = policy
        self._announced: PublishedPolicy | None = None
        self._announced_at = 0.0
        self._pushed_bytes = 0
        self._is_loaded = False
        self._greeted_it = False
        self.has_heard = False
        """Whether the program has said anything."""
        self._pinging_since = self._pinged_at = -math.inf
        self._working = False
        self._claims_refused = False
        self._has_loaded = False
        self._holdings = Holdings()
        self._conduct = Conduct(job, spec.slots)

    @property
    def patience_s(self) -> float:
        """How long the program may be silent: while it imports a large library none of its threads runs."""
        return self._limits.silence_s if self._has_loaded else max(self._limits.silence_s, self._limits.start_s)

    def greet(self, now: float) -> None:
        self._pinging_since = self._pinged_at = now
        self._rim.send(Hello(self._job.run, list(SPOKEN), self._job.host))

    def announce(self, policy: PublishedPolicy, now: float) -> None:
        """Asks the worker to act with this version; it answers with what it lacks, or that it is loaded."""
        self._policy = policy
        if not self._working:
            return
        self._announced, self._announced_at, self._pushed_bytes, self._is_loaded = policy, now, 0, False
        tensors = policy.tensor_entries()
        self._conduct.announced(policy.iteration, {entry.digest for entry in tensors.values()})
        self._rim.send(LoadPolicy(policy.iteration, tensors))

    def lease(self, tickets: Sequence[Ticket]) -> None:
        """Asks the program to run these. Ignored until the job is accepted: those leases belonged to a predecessor."""
        if not self._working:
            return
        sizes = {ticket.key: len(msgspec.json.encode(ticket)) for ticket in tickets}
        for ticket in [ticket for ticket in tickets if sizes[ticket.key] > MOST_HOST_BYTES // 2]:
            reason = f"task {ticket.task.id:.80} is too large to be sent: its ticket has {sizes[ticket.key]} bytes"
            self._rim.tell(Said(self._spec.name, EpisodeFailed(0, ticket.key, reason)))
        for part in _parts([ticket for ticket in tickets if sizes[ticket.key] <= MOST_HOST_BYTES // 2], sizes):
            lease = self._holdings.lease(part)
            self._conduct.leased(len(part), lease.order)
            self._rim.send(lease)

    def drop(self, keys: Sequence[Key], lost_to: str) -> None:
        """Takes back those of these tickets that the program should hold."""
        held = [key for key in keys if self._holdings.holds(key)]
        if held:
            self._drop(held, lost_to)

    def _drop(self, keys: Sequence[Key], lost_to: str) -> None:
        if not self._working:
            return
        drop = self._holdings.drop(keys, lost_to)
        self._conduct.leased(0, drop.order)
        self._rim.send(drop)

    def forget(self, episode_id: str) -> None:
        self._conduct.forgot(episode_id)
        self._rim.send(Landed([episode_id]))

    def collected(self) -> None:
        self._conduct.collected()
        self._rim.send(Collected())

    def decided(self, reply: InferenceReply) -> None:
        """The host's policy has answered a request."""
        try:
            self._rim.send(reply.to_message())
        except ProtocolError as error:  # the policy's fault, and not the worker's
            self._rim.send(InferenceFailure(reply.number, str(error)).to_message())

    def answered(self, number: int) -> None:
        """An answer has gone. Until then its request is open, so a program that reads none gets only a few."""
        self._conduct.answered(number)

    def ping(self, now: float) -> None:
        if self._pinged_for(now) == 0:
            self._pinging_since = now
        self._pinged_at = now
        self._rim.send(Ping())

    def _pinged_for(self, now: float) -> float:
        """Returns for how long the program was pinged without a break, such as the suspension of this host."""
        has_paused = now - self._pinged_at > max(self._limits.silence_s / 2, 2 * PING_S)
        return 0.0 if has_paused else now - self._pinging_since

    def stop(self) -> None:
        self._rim.send(Stop())

    def pushed(self, what: Literal["job", "policy"], sent: int) -> None:
        """The blobs of a Push are on the worker: a finished push implies the start, or the load."""
        if what == "policy":
            self._pushed_bytes += sent
        self._rim.send(Pushed(what))

    def silent(self, link_answers: bool, error: WorkerError) -> WorkerError:
        """Returns why nothing came for ``patience_s``: is it the program that is silent, or the connection?"""
        if isinstance(error, LinkLostError) and link_answers:
            return ProgramSilent(self._spec.name, f"the worker program is silent for {self.patience_s:.0f} s")
        return error

    def malformed(self, line: bytes, error: ProtocolError) -> WorkerError:
        """Returns what a line that is no message means: before the program has said anything, a shell may print it."""
        if self.has_heard or line.startswith(b"{") or len(line) > MOST_BYTES:
            return MisconductError(self._spec.name, f"the worker program sends what is no message: {error}")
        return JobError(
            self._spec.name,
            f"something else than the worker program answers: {line[:200]!r}",
            "let the shell's start-up files print nothing when it is not interactive",
        )

    def receive(self, message: WorkerMessage, attached: bytes, now: float) -> None:
        """Acts on one message of the program. Raises WorkerError if the connection is to end."""
        self.has_heard = True
        waits_already = isinstance(message, Ask) and self._conduct.is_asked(message.number)
        try:
            self._conduct.check(message, len(attached), len(self._holdings), now)
            if not waits_already:
                self._receive(message, attached, now)
        except ProtocolError as error:
            reason = f"the worker program breaks the protocol with a {type(message).__name__}: {error}"
            raise MisconductError(self._spec.name, reason) from error

    def _receive(self, message: WorkerMessage, attached: bytes, now: float) -> None:
        match message:
            case Ready():
                self._greeted(message)
            case Need():
                self._needed(message)
            case Working():
                self._started(message, now)
            case Loaded(version):
                self._loaded(version, now)
            case Ask():
                self._asked(InferenceRequest.from_message(message, attached))
            case EpisodeReady(manifest):
                if manifest.run != self._job.run:
                    raise ProtocolError(f"it is of run {manifest.run}, not of {self._job.run}")
                if not self._holdings.may_end(manifest.key):
                    raise ProtocolError(f"its ticket {manifest.key.name} was not leased to it")
                self._holdings.ended(manifest.key, manifest.attempt)
                self._say(message)
            case EpisodeFailed(_, key, _) if self._holdings.holds(key):
                self._holdings.ended(key)
                self._say(message)
            case Acting(_, key) if self._holdings.holds(key):
                self._say(message)
            case SlotChanged() | SlotSeconds() if self._working:
                self._say(message)
            case Heartbeat():
                self._compare(message, now)
            case Broken():
                raise self._broken(message)
            case Acting() | EpisodeFailed() | SlotChanged() | SlotSeconds():
                pass  # a ticket that was dropped meanwhile, or what a former host asked for
            case _:
                self._say(message)

    def _say(self, message: Told) -> None:
        self._rim.tell(Said(self._spec.name, message))

    def _asked(self, request: InferenceRequest) -> None:
        """Has the host's policy decide. A question that could hold it up, or fail others' batch, gets no action."""
        try:
            self._job.guard.check_question(request.observation)
        except TrajectoryError as error:
            self._conduct.refused()
            self.decided(InferenceFailure(request.number, str(error)))
        else:
            self._rim.decide(request)

    def _greeted(self, ready: Ready) -> None:
        if self._greeted_it:
            return
        self._greeted_it = True
        if ready.protocol not in SPOKEN or ready.package != self._spec.package:
            raise ProgramSilent(self._spec.name, "a program of another version serves this run; it is replaced")
        self._rim.send(self._job.message(self._spec))
        if ready.machine is not None:
            self._say(ready)

    def _started(self, working: Working, now: float) -> None:
        if self._working or not self._greeted_it:  # the answer to a former host may still be on its way
            return
        self._conduct.works(working, now)
        self._working = True
        self._holdings.adopt(working.held)
        self._say(working)
        if self._policy is not None:
            self.announce(self._policy, now)

    def _loaded(self, version: int, now: float) -> None:
        self._has_loaded = True
        if self._announced is None or self._announced.iteration != version or self._is_loaded:
            return
        self._is_loaded = True
        self._rim.tell(PolicyLoaded(self._spec.name, version, now - self._announced_at, self._pushed_bytes))

    def _needed(self, need: Need) -> None:
        """Sends what the worker lacks for its job or for the announced policy."""
        digests = set(need.digests)
        if need.what == "job":
            self._rim.push(need, [Blob.of(data) for name, data in self._job.blobs().items() if name in digests])
        elif self._announced is not None:
            self._rim.push(need, self._announced.blobs(digests))

    def _compare(self, beat: Heartbeat, now: float) -> None:
        """Holds what the program says of itself against what the host believes."""
        name, limits = self._spec.name, self._limits
        if beat.for_s > limits.stuck_s:  # heartbeats come from a thread of the program; its loop must get on as well
            raise ProgramSilent(name, f"the worker program is stuck: {beat.doing} since {beat.for_s:.0f} s")
        if min(beat.unheard_s, self._pinged_for(now)) > limits.silence_s:
            reason = f"the worker program has not heard of this host for {beat.unheard_s:.0f} s: the link is half-open"
            raise ProgramDeaf(name, reason)
        self._say(beat)
        if not self._working:
            return
        lost, claimed = self._holdings.compare(beat.held, beat.order, now)
        if (behind_s := min(self._holdings.behind_s(now), self._pinged_for(now))) > 2 * limits.stuck_s:
            raise ProgramSilent(name, f"the worker program has taken in no order for {behind_s:.0f} s")
        if lost:
            self._rim.tell(LeasesLost(name, lost))
        if claimed and self._claims_refused:
            reason = f"it claims tickets that it was told to drop, such as {tuple(claimed[0])}"
            raise MisconductError(name, reason, proven=True)
        if claimed:
            self._claims_refused = True
            self._rim.tell(ClaimsRefused(name, claimed))
            self._drop(claimed, "faults")

    def _broken(self, told: Broken) -> WorkerError:
        name, reason = self._spec.name, told.reason
        match told.during.lower():
            case "hello":
                return ProgramSilent(name, f"a program of another version serves this run; it is replaced ({reason})")
            case "host":
                remedy = "end one of the two; a copy of the run folder (cp -r) goes on as a run of its own"
                return JobError(name, reason, remedy)
            case "attach":
                return JobError(
                    name, reason, "set worker_temp_path to a folder on a local disk that its user can write"
                )
            case "start":
                remedy = (
                    "mend what its last lines name; or delete digirl_dist_env in worker_run_path to have it made anew; "
                    "or set worker_run_path (mounted noexec?) or worker_temp_path (without locks or sockets?) elsewhere"
                )
                return JobError(name, reason, remedy)
            case "hear":
                return JobError(name, f"it refuses what this host says: {reason}", "please report it")
            case "wait":
                return LinkLostError(name, reason, "see what keeps the machine busy, or short of memory")
            case "disk":
                remedy = "make room there and let nothing clean up there, or set worker_temp_path elsewhere"
                return LinkLostError(name, reason, remedy)
        if told.foreseen:
            return JobError(name, reason)
        remedy = "see the traceback; `parallel=single` runs the same agent and emulator on the host"
        return JobError(name, f"it cannot carry out '{told.during}': {reason}", remedy)


def _parts(tickets: Sequence[Ticket], sizes: Mapping[Key, int]) -> Iterator[Sequence[Ticket]]:
    """Yields the tickets in parts that fit into a message."""
    size, part = 0, list[Ticket]()
    for ticket in tickets:
        size += sizes[ticket.key]
        if part and (size > MOST_HOST_BYTES // 2 or len(part) == MOST_HELD):
            yield part
            size, part = sizes[ticket.key], []
        part.append(ticket)
    if part:
        yield part


class Holdings:
    """The leases of one connection, held against what its program says that it holds.

    Leases and drops are numbered, and a heartbeat names the newest it knows. A difference counts once two heartbeats
    in a row show it: an episode may end between a heartbeat's making and its sending. What the program knows of never
    becomes less, whatever it says later.
    """

    def __init__(self) -> None:
        self._order = 0
        self._known = 0
        """The newest order that the program has taken in: after the first, what lay ready before was announced."""
        self._behind_since: float | None = None
        """When a heartbeat first lacked an order and none has shown progress since."""
        self._held: dict[Key, tuple[int, int]] = {}
        """The order and the attempt of each lease."""
        self._dropped: dict[Key, tuple[int, int]] = {}
        """For drops that the program may not know of: the newest order, and how many episodes may still come."""
        self._missing: set[Key] = set()
        self._claimed: set[Key] = set()

    def __len__(self) -> int:
        """The tickets that the program may name."""
        return len(self._held) + len(self._dropped)

    def adopt(self, keys: Sequence[Key]) -> None:
        """Begins with the tickets that the program had before this connection."""
        self._held = dict.fromkeys(keys, (0, 0))

    def lease(self, tickets: Sequence[Ticket]) -> Lease:
        self._order += 1
        for ticket in tickets:
            self._held[ticket.key] = self._order, ticket.attempt
        return Lease(self._order, list(tickets))

    def drop(self, keys: Sequence[Key], lost_to: str) -> Drop:
        self._order += 1
        for key in keys:
            self._held.pop(key, None)
            self._dropped[key] = self._order, self._dropped.get(key, (0, 0))[1] + 1
        return Drop(self._order, list(keys), lost_to)

    def holds(self, key: Key) -> bool:
        """Returns whether the program should hold the ticket."""
        return key in self._held

    def may_end(self, key: Key) -> bool:
        """Returns whether an episode of the ticket may come: it is held, or just dropped, or lay ready from before."""
        return self._known == 0 or key in self._held or self._dropped.get(key, (0, 0))[1] > 0

    def ended(self, key: Key, attempt: int | None = None) -> None:
        """Forgets a ticket whose end the program has told, but not if it was leased again since that attempt.

        Of a drop that it may not have known of, one episode is forgiven.
        """
        if key in self._held:
            if attempt is None or attempt >= self._held[key][1]:
                del self._held[key]
        elif key in self._dropped:
            order, forgiven = self._dropped[key]
            self._dropped[key] = order, forgiven - 1

    def behind_s(self, now: float) -> float:
        """Returns for how long the program has taken in none of the orders that it lacks."""
        return 0.0 if self._behind_since is None else now - self._behind_since

    def compare(self, said: Collection[Key], order: int, now: float) -> tuple[list[Key], list[Key]]:
        """Returns the tickets that the program lost without a word, and those that it claims without a lease.

        ``said`` takes the orders up to ``order`` into account.
        """
        claims = set(said)
        if order > self._known or order == self._order:
            self._behind_since = None
        self._known = max(self._known, order)
        if self._known < self._order and self._behind_since is None:
            self._behind_since = now
        known = self._known
        self._dropped = {key: drop for key, drop in self._dropped.items() if drop[0] > known}
        missing = {key for key, (since, _) in self._held.items() if since <= known and key not in claims}
        claimed = claims - self._held.keys() - self._dropped.keys()
        lost, refused = missing & self._missing, claimed & self._claimed
        self._missing, self._claimed = missing - lost, claimed - refused
        for key in lost:
            del self._held[key]
        return sorted(lost), sorted(refused)
