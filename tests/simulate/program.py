"""A worker program on virtual time: its real core over simulated slots, policies, blobs and files."""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence
from functools import partial
from typing import Any

import msgspec

from digirl_dist.capacity import PoolSize
from digirl_dist.protocol import messages
from digirl_dist.protocol.messages import (
    EpisodeManifest,
    EpisodeReady,
    LoadPolicy,
    StartJob,
    UnknownFile,
    WorkerMessage,
)
from digirl_dist.rollout.rollout import Finished, Happening
from digirl_dist.tasks import Key, Ticket
from digirl_dist.worker_program.core import DiskRefusedError, ProgramCore, What
from simulate.behaviour import Behaviour
from simulate.slots import SimulatedSlots
from simulate.world import World

RUN = "r1"
DIGEST = "ab"
_TURN_S = 1.0


class SimulatedProgram:
    """A worker's program and its folder (``blobs``, ``ready``, ``strays``), which outlives ``kill``: a ``Rim``."""

    def __init__(self, world: World, name: str, behaviour: Behaviour, orphan_s: float = 60.0) -> None:
        self.world, self.name, self.behaviour, self.orphan_s = world, name, behaviour, orphan_s
        self.say: Callable[[messages.WorkerMessage], None] | None = None
        self.ends: Callable[[], object] = lambda: None
        """Called when it ends in whatever way."""
        self.blobs: set[str] = set()
        self.altered: set[str] = set()
        self.ready: dict[str, tuple[EpisodeManifest, Ticket]] = {}
        self.strays: dict[str, str] = {}
        self.damaged: set[str] = set()
        """Episodes whose rows are not what the digest says."""
        self.done: list[tuple[Any, ...]] = []
        """All calls of the core, by name and arguments."""
        self.raises: dict[str, Exception] = {}
        """What the next call of that name raises."""
        self.disk_is_full = False
        self.pushes_arrive = True
        self.ahead_s = 0.0
        """Seconds by which this machine's clock is ahead of the world's."""
        self.episode_bytes = 100_000
        self.generation = 0
        self.stopped_by_host: bool | None = None
        """None: it has not ended."""
        self.slots: SimulatedSlots | None = None
        self._start()

    @property
    def now(self) -> float:
        """This machine's monotonic seconds."""
        return self.world.now + self.ahead_s

    def _start(self) -> None:
        self.core = ProgramCore(self, self.orphan_s, "", "3.11", self.generation)
        self.stopped_by_host = None
        self.heard_at = self.now
        self.needed: list[str] = []
        self.answers: list[messages.Action | messages.NoAction] = []
        self.stopped = False
        """Whether no thread of it runs."""
        self._frozen_until = 0.0
        self._unread: list[messages.HostMessage] = []
        self._unnoticed: list[Happening] = []
        """What happened on the slots since the loop's last turn."""
        self._shut()
        self.world.later(_TURN_S, partial(self._clockwork, self.generation))

    def kill(self) -> None:
        """The next program of this worker knows what lies in the folder, and nothing else."""
        self._end()
        self._start()

    def attach(self, replace: bool) -> None:
        """A host comes: a program that has ended, or is to be replaced, is started again."""
        if replace or self.stopped_by_host is not None:
            self.kill()

    def receive(self, message: messages.HostMessage) -> None:
        if not self.stopped:
            self.heard_at = self.now
        if self.frozen:
            self._unread.append(message)
        else:
            self._act_on(message)

    @property
    def frozen(self) -> bool:
        """Whether its loop gets nowhere."""
        return self.world.now < self._frozen_until

    def freeze(self, seconds: float, stopped: bool = False) -> None:
        """Its loop gets nowhere for so long; what it is told waits. ``stopped``: so do its heartbeats."""
        self._frozen_until = max(self._frozen_until, self.world.now + seconds)
        self.stopped = self.stopped or stopped
        self.world.later(self._frozen_until - self.world.now, partial(self._thaw, self.generation))

    def heartbeat(self) -> messages.Heartbeat:
        in_service = 0 if self.slots is None else self.slots.in_service
        beat = self.core.heartbeat(self.now, self.heard_at, [], in_service)
        return msgspec.structs.replace(beat, held=[*beat.held, *self.behaviour.claims])

    def beat(self) -> None:
        """Sends a heartbeat."""
        self._say(self.heartbeat())

    def held(self) -> list[Ticket]:
        return [] if self.slots is None else self.slots.held()

    def _act_on(self, message: messages.HostMessage) -> None:
        self._notice()
        if isinstance(message, messages.Pushed) and self.pushes_arrive:
            self.blobs.update(self.needed)
        self.core.receive(message, self.now)
        self._tick()

    def _thaw(self, generation: int) -> None:
        if generation != self.generation or self.frozen:
            return
        if self.stopped:
            self.stopped, self.heard_at = False, self.now
        unread, self._unread = self._unread, []
        for message in unread:
            if generation == self.generation:
                self._act_on(message)
        self._tick()

    def _note(self, name: str, *arguments: Any) -> None:
        if (error := self.raises.pop(name, None)) is not None:
            raise error
        self.done.append((name, *arguments))

    def send(self, message: WorkerMessage) -> None:
        if isinstance(message, messages.Need):
            self.needed = message.digests
        self._say(message)

    def end(self, stopped: bool) -> None:
        self._note("end", stopped)
        self.stopped_by_host = stopped
        self._end()

    def start_slots(self, job: StartJob) -> PoolSize:
        self._note("start_slots", job)
        count = job.slots or self.behaviour.slots
        tell = partial(self._tell, self.generation)
        self.slots = SimulatedSlots(self.world, self.name, count, self.behaviour, job.limits, tell)
        return PoolSize(count, "")

    def close_slots(self) -> None:
        self._note("close_slots")
        self._shut()

    @property
    def _running(self) -> SimulatedSlots:
        assert self.slots is not None
        return self.slots

    def lease(self, tickets: Sequence[Ticket]) -> None:
        self._note("lease", tickets)
        self._running.lease([ticket for ticket in tickets if not self.behaviour.mishears(ticket)])

    def drop(self, keys: Collection[Key], lost_to: str) -> None:
        self._note("drop", keys, lost_to)
        self._running.drop(keys, lost_to)

    def idle(self, activity: str) -> None:
        self._note("idle", activity)
        self._running.idle(activity)

    def spent(self) -> dict[str, float]:
        return self._running.counted()

    def load(self, policy: LoadPolicy) -> bool:
        self._note("load", policy)
        if altered := self.altered & {entry.digest for entry in policy.tensors.values()}:
            self.blobs -= altered
            self.altered.clear()
            return False
        if self.behaviour.load_s:
            self.freeze(self.behaviour.load_s)
        self._running.act_with(self._running.versions | {policy.version})
        return True

    def share(self, version: int, other: int) -> None:
        self._note("share", version, other)
        assert other in self._running.versions
        self._running.act_with(self._running.versions | {version})

    def keep_versions(self, versions: frozenset[int]) -> None:
        self._running.act_with(self._running.versions & versions)

    def answer(self, answer: messages.Action | messages.NoAction) -> None:
        self.answers.append(answer)

    def ask_again(self) -> None:
        self._note("ask_again")

    def missing(self, what: What, digests: Sequence[str]) -> list[str]:
        return [name for name in digests if name not in self.blobs]

    def rests(self, digests: Sequence[str]) -> dict[str, int]:
        return {}

    def keep_blobs(self, tensors: Collection[str], packed: Collection[str]) -> None:
        self.blobs &= {*tensors, *packed}

    def write(self, run: str, finished: Finished) -> EpisodeManifest:
        self._note("write", run, finished)
        if self.disk_is_full:
            raise DiskRefusedError("No space left on device")
        ticket, name = finished.trajectory.ticket, finished.trajectory.episode_id
        seconds, age_s = finished.ended_at - finished.started_at, self.world.now - finished.ended_at
        version, slot, size = ticket.policy_version, finished.trajectory.slot, self.episode_bytes
        manifest = EpisodeManifest(
            run, ticket.key, ticket.attempt, version, name, size, DIGEST, slot, seconds, age_s, finished.spent
        )
        self.ready[name] = manifest, ticket
        return manifest

    def spooled(self, run: str) -> Sequence[EpisodeReady | UnknownFile]:
        strays, self.strays = self.strays, {}
        for name in [name for name, (manifest, _) in self.ready.items() if manifest.run != run]:
            strays[name] = f"it is of run {self.ready.pop(name)[0].run}, not of {run}"
        found = [EpisodeReady(manifest) for manifest, _ in self.ready.values()]
        return [*found, *(UnknownFile(name, why) for name, why in strays.items())]

    def delete(self, names: Sequence[str]) -> None:
        for name in names:
            self.ready.pop(name, None)

    def _tell(self, generation: int, happening: Happening) -> None:
        """The loop notices in its next turn what happens on slots."""
        if generation == self.generation:
            self._unnoticed.append(happening)
            self.world.later(0.0, partial(self._turn, generation))

    def _clockwork(self, generation: int) -> None:
        if generation == self.generation:
            self._turn(generation)
            self.world.later(_TURN_S, partial(self._clockwork, generation))

    def _turn(self, generation: int) -> None:
        if generation == self.generation and not self.frozen:
            self._tick()

    def _notice(self) -> None:
        happened, self._unnoticed = self._unnoticed, []
        for happening in happened:
            self.core.happened(happening)

    def _tick(self) -> None:
        """The end of a turn of the loop."""
        self._notice()
        if self.stopped_by_host is None:
            self.core.wait(self.now)
            queued = [] if self.slots is None else [ticket.key for ticket in self.slots.queue]
            self.core.tick(self.now, self.heard_at, self.held(), queued)

    def _end(self) -> None:
        self.generation += 1
        self.say = None
        self._shut()
        self.ends()

    def _shut(self) -> None:
        if self.slots is not None:
            self.slots.close()
        self.slots = None

    def _say(self, message: messages.WorkerMessage) -> None:
        if self.say is not None:
            self.say(message)
