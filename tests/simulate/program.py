"""A worker program on virtual time: its real core over simulated slots, policies, blobs and files."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

import msgspec

from digirl_dist.capacity import PoolSize
from digirl_dist.protocol import messages
from digirl_dist.protocol.messages import EpisodeManifest
from digirl_dist.rollout.rollout import Finished, Happening
from digirl_dist.tasks import Ticket
from digirl_dist.worker_program import effects
from digirl_dist.worker_program.core import Effects, ProgramCore
from digirl_dist.worker_program.effects import Effect, SpooledFile
from simulate.behaviour import Behaviour
from simulate.slots import SimulatedSlots
from simulate.world import World

RUN = "r1"
DIGEST = "ab"
_TURN_S = 1.0


class SimulatedProgram:
    """A worker's program and its folder (``blobs``, ``ready``, ``strays``), which outlives ``kill``."""

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
        self.done: list[Effect] = []
        """All effects that were carried out."""
        self.raises: dict[type, Exception] = {}
        """What the next effect of that type raises."""
        self.disk_is_full = False
        self.pushes_arrive = True
        self.ahead_s = 0.0
        """Seconds by which this machine's clock is ahead of the world's."""
        self.episode_bytes = 100_000
        self.generation = 0
        self.ended: effects.End | None = None
        self.slots: SimulatedSlots | None = None
        self._start()

    @property
    def now(self) -> float:
        """This machine's monotonic seconds."""
        return self.world.now + self.ahead_s

    def _start(self) -> None:
        self.core = ProgramCore(self.orphan_s, "", "3.11", self.generation)
        self.ended = None
        self.heard_at = self.now
        self.needed: list[str] = []
        self.answers: list[messages.Action | messages.NoAction] = []
        self.stopped = False
        """Whether no thread of it runs."""
        self._frozen_until = 0.0
        self._unread: list[messages.HostMessage] = []
        self._unnoticed: list[Happening] = []
        """What happened on the slots since the loop's last turn."""
        self._close_slots()
        self.world.later(_TURN_S, partial(self._clockwork, self.generation))

    def kill(self) -> None:
        """The next program of this worker knows what lies in the folder, and nothing else."""
        self._end()
        self._start()

    def attach(self, replace: bool) -> None:
        """A host comes: a program that has ended, or is to be replaced, is started again."""
        if replace or self.ended is not None:
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

    def happened(self, happening: Happening) -> None:
        self.do("episode", self.core.happened(happening))

    def act_fails(self, error: Exception) -> None:
        """The agent raises in its turn."""
        self.do("act", self.core.act_failed(error))

    def do(self, during: str, wanted: Effects) -> None:
        """Carries the effects out as the core's contract says."""
        try:
            self._carry_out(wanted)
        except Exception as error:
            self._carry_out(self.core.failed(during, error))
        self.core.settle()

    def _act_on(self, message: messages.HostMessage) -> None:
        self._notice()
        if isinstance(message, messages.Pushed) and self.pushes_arrive:
            self.blobs.update(self.needed)
        self.do(type(message).__name__, self.core.receive(message, self.now))
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

    def _carry_out(self, wanted: Effects) -> None:
        for effect in wanted:
            if (error := self.raises.pop(type(effect), None)) is not None:
                raise error
            self.done.append(effect)
            self._carry_out(self._result(effect))

    def _result(self, effect: Effect) -> Effects:
        match effect:
            case effects.Send(message):
                if isinstance(message, messages.Need):
                    self.needed = message.digests
                self._say(message)
            case effects.End():
                self.ended = effect
                self._end()
            case effects.StartSlots(job):
                count = job.slots or self.behaviour.slots
                tell = partial(self._tell, self.generation)
                self.slots = SimulatedSlots(self.world, self.name, count, self.behaviour, job.limits, tell)
                return self.core.started(job, PoolSize(count, ""))
            case effects.CloseSlots():
                self._close_slots()
            case effects.PassAnswer(answer):
                self.answers.append(answer)
            case _ if self.slots is not None:
                return self._on_slots(effect, self.slots)
            case _:
                return self._on_files(effect)
        return []

    def _on_slots(self, effect: Effect, slots: SimulatedSlots) -> Effects:
        match effect:
            case effects.LeaseTickets(tickets):
                slots.lease([ticket for ticket in tickets if not self.behaviour.mishears(ticket)])
            case effects.DropTickets(keys, lost_to):
                slots.drop(keys, lost_to)
            case effects.IdleBecause(activity):
                slots.idle(activity)
            case effects.CountSeconds():
                return self.core.counted(slots.counted())
            case effects.LoadTensors(policy):
                if altered := self.altered & {entry.digest for entry in policy.tensors.values()}:
                    self.blobs -= altered
                    self.altered.clear()
                    return self.core.altered()
                if self.behaviour.load_s:
                    self.freeze(self.behaviour.load_s)
                return self._acts_with(policy.version, slots)
            case effects.ShareTensors(version, other):
                assert other in slots.versions
                return self._acts_with(version, slots)
            case effects.KeepVersions(versions):
                slots.act_with(slots.versions & versions)
            case _:
                return self._on_files(effect)
        return []

    def _acts_with(self, version: int, slots: SimulatedSlots) -> Effects:
        slots.act_with(slots.versions | {version})
        return self.core.loaded(version)

    def _on_files(self, effect: Effect) -> Effects:
        match effect:
            case effects.FindMissing(what, digests):
                return self.core.found_missing(what, [name for name in digests if name not in self.blobs])
            case effects.KeepBlobs(tensors, packed):
                self.blobs &= {*tensors, *packed}
            case effects.WriteEpisode(run, finished):
                return self._write(run, finished)
            case effects.ListSpooled(run):
                strays, self.strays = self.strays, {}
                for name in [name for name, (manifest, _) in self.ready.items() if manifest.run != run]:
                    strays[name] = f"it is of run {self.ready.pop(name)[0].run}, not of {run}"
                found = [SpooledFile(name, manifest) for name, (manifest, _) in self.ready.items()]
                return self.core.spooled([*found, *(SpooledFile(name, None, why) for name, why in strays.items())])
            case effects.DeleteEpisodes(names):
                for name in names:
                    self.ready.pop(name, None)
        return []

    def _write(self, run: str, finished: Finished) -> Effects:
        ticket, name = finished.trajectory.ticket, finished.trajectory.episode_id
        if self.disk_is_full:
            return self.core.not_written(ticket.key, "No space left on device")
        seconds, age_s = finished.ended_at - finished.started_at, self.world.now - finished.ended_at
        version, slot, size = ticket.policy_version, finished.trajectory.slot, self.episode_bytes
        manifest = EpisodeManifest(
            run, ticket.key, ticket.attempt, version, name, size, DIGEST, slot, seconds, age_s, finished.spent
        )
        self.ready[name] = manifest, ticket
        return self.core.written(manifest)

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
            self.happened(happening)

    def _tick(self) -> None:
        """The end of a turn of the loop."""
        self._notice()
        if self.ended is None:
            self.core.wait(self.now)
            queued = [] if self.slots is None else [ticket.key for ticket in self.slots.queue]
            self.do("tick", self.core.tick(self.now, self.heard_at, self.held(), queued))

    def _end(self) -> None:
        self.generation += 1
        self.say = None
        self._close_slots()
        self.ends()

    def _close_slots(self) -> None:
        if self.slots is not None:
            self.slots.close()
        self.slots = None

    def _say(self, message: messages.WorkerMessage) -> None:
        if self.say is not None:
            self.say(message)
