"""A worker program on virtual time, in one thread: its real core over simulated slots, policies, blobs and files."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from functools import partial

import msgspec
from simulation.world import SEEN, Behaviour, World

from digirl_dist.capacity import PoolSize
from digirl_dist.protocol import messages
from digirl_dist.protocol.messages import EpisodeManifest
from digirl_dist.rollout.rollout import Finished, Happening
from digirl_dist.tasks import Key, Ticket
from digirl_dist.trajectory import Step, Trajectory
from digirl_dist.worker_program import effects
from digirl_dist.worker_program.core import Effects, ProgramCore
from digirl_dist.worker_program.effects import Effect, SpooledFile

TURN_S = 0.5
DIGEST = "ab"


class SimulatedProgram:
    """Runs episodes of a given length. The folder (``blobs``, ``ready``, ``strays``) outlives ``kill``."""

    def __init__(self, world: World, name: str, behaviour: Behaviour, orphan_s: float = 60.0) -> None:
        self.world, self.name, self.behaviour, self.orphan_s = world, name, behaviour, orphan_s
        self.say: Callable[[messages.WorkerMessage], None] | None = None
        self.blobs: set[str] = set()
        self.altered: set[str] = set()
        self.ready: dict[str, tuple[EpisodeManifest, Ticket]] = {}
        self.strays: dict[str, str] = {}
        self.done: list[Effect] = []
        """All effects that were carried out."""
        self.raises: dict[type, Exception] = {}
        """What the next effect of that type raises."""
        self.disk_is_full = False
        self.pushes_arrive = True
        self.generation = 0
        self.ended: effects.End | None = None
        self._start()

    def _start(self) -> None:
        self.core = ProgramCore(self.orphan_s, "", "3.11", self.generation)
        self.heard_at = self.world.now
        self.needed: list[str] = []
        self.slots = 0
        self.queue: deque[Ticket] = deque()
        self.running: dict[Key, Ticket] = {}
        self.versions: set[int] = set()
        self.answers: list[messages.Action | messages.NoAction] = []
        self.world.later(TURN_S, partial(self._turn, self.generation))

    def kill(self) -> None:
        """The next program of this worker knows what lies in the folder, and nothing else."""
        self.generation += 1
        self.say = None
        self._start()

    def receive(self, message: messages.HostMessage) -> None:
        self.heard_at = self.world.now
        if isinstance(message, messages.Pushed) and self.pushes_arrive:
            self.blobs.update(self.needed)
        self.do(type(message).__name__, self.core.receive(message, self.world.now))
        self._begin()

    def beat(self) -> None:
        """Sends a heartbeat."""
        beat = self.core.heartbeat(self.world.now, self.heard_at, [], self.slots)
        self._say(msgspec.structs.replace(beat, held=[*beat.held, *self.behaviour.claims]))

    def held(self) -> list[Ticket]:
        return [*self.queue, *self.running.values()]

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
                self.generation += 1
            case effects.StartSlots(job):
                self.slots = job.slots or self.behaviour.slots
                return self.core.started(job, PoolSize(self.slots, ""))
            case effects.CloseSlots():
                self.slots = 0
                self.queue.clear()
                self.running.clear()
                self.versions.clear()
            case effects.LeaseTickets(tickets):
                self.queue.extend(ticket for ticket in tickets if not self.behaviour.mishears(ticket))
            case effects.DropTickets(keys):
                self.queue = deque(ticket for ticket in self.queue if ticket.key not in keys)
                for key in keys:
                    self.running.pop(key, None)
            case effects.CountSeconds():
                return self.core.counted({"step": 1.0})
            case _:
                return self._on_policies_or_files(effect)
        return []

    def _on_policies_or_files(self, effect: Effect) -> Effects:
        match effect:
            case effects.LoadTensors(policy):
                if altered := self.altered & {entry.digest for entry in policy.tensors.values()}:
                    self.blobs -= altered
                    self.altered.clear()
                    return self.core.altered()
                self.versions.add(policy.version)
                return self.core.loaded(policy.version)
            case effects.ShareTensors(version, other):
                assert other in self.versions
                self.versions.add(version)
                return self.core.loaded(version)
            case effects.KeepVersions(versions):
                self.versions &= versions
            case effects.PassAnswer(answer):
                self.answers.append(answer)
            case effects.FindMissing(what, digests):
                return self.core.found_missing(what, [name for name in digests if name not in self.blobs])
            case effects.KeepBlobs(tensors, packed):
                self.blobs &= {*tensors, *packed}
            case effects.WriteEpisode(run, finished):
                return self._write(run, finished)
            case effects.ListSpooled():
                found = [SpooledFile(name, manifest) for name, (manifest, _) in self.ready.items()]
                return self.core.spooled([*found, *(SpooledFile(name, None, why) for name, why in self.strays.items())])
            case effects.DeleteEpisodes(names):
                for name in names:
                    self.ready.pop(name, None)
                    self.strays.pop(name, None)
        return []

    def _write(self, run: str, finished: Finished) -> Effects:
        ticket, episode_id = finished.trajectory.ticket, finished.trajectory.episode_id
        if self.disk_is_full:
            return self.core.not_written(ticket.key, "No space left on device")
        seconds, age_s = finished.ended_at - finished.started_at, self.world.now - finished.ended_at
        attempt, version = ticket.attempt, ticket.policy_version
        manifest = EpisodeManifest(
            run, ticket.key, attempt, version, episode_id, 100, DIGEST, 0, seconds, age_s, finished.spent
        )
        self.ready[episode_id] = manifest, ticket
        return self.core.written(manifest)

    def _turn(self, generation: int) -> None:
        if generation == self.generation:
            self.core.wait(self.world.now)
            queued = [ticket.key for ticket in self.queue]
            self.do("tick", self.core.tick(self.world.now, self.heard_at, self.held(), queued))
            self._begin()
            self.world.later(TURN_S, partial(self._turn, generation))

    def _begin(self) -> None:
        """Puts queued tickets on free slots; their policy version must be there first."""
        while len(self.running) < self.slots and self.queue and self.queue[0].policy_version in self.versions:
            ticket = self.queue.popleft()
            self.running[ticket.key] = ticket
            self.world.later(self.behaviour.episode_s, partial(self._end, ticket, self.world.now, self.generation))
            self.happened(messages.Acting(0, ticket.key))

    def _end(self, ticket: Ticket, began_at: float, generation: int) -> None:
        if generation != self.generation or self.running.get(ticket.key) is not ticket:
            return
        del self.running[ticket.key]
        if not self.behaviour.forgets(ticket):
            episode_id = f"{ticket.iteration}-{ticket.index}-{ticket.attempt}-{self.name}"
            step = Step(SEEN, 0, -1.0, 1.0, terminated=True, truncated=False)
            episode = Trajectory(ticket, episode_id, self.name, 0, [step], SEEN, success=True)
            self.happened(Finished(episode, began_at, self.world.now, {"step": self.world.now - began_at}))
        self._begin()

    def _say(self, message: messages.WorkerMessage) -> None:
        if self.say is not None:
            self.say(message)
