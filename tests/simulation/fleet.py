"""A fleet on virtual time, in one thread: the real collector, sessions and back-off over simulated links and programs.

Nothing here waits: what happens later is an entry in a heap, and ``SimulatedFleet.next_event`` moves the clock to it.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from types import SimpleNamespace
from typing import Any

from simulation.program import SimulatedProgram
from simulation.world import RUN, SEEN, Behaviour, World

from digirl_dist.collect.dispatch import DispatchRules
from digirl_dist.collect.fleet_collector import FleetCollector
from digirl_dist.collect.iteration import Closing
from digirl_dist.errors import LinkLostError, WorkerError
from digirl_dist.fleet.effects import HangUp, Push, Send, Tell
from digirl_dist.fleet.outgoing import Named
from digirl_dist.fleet.reconnecting import Reconnecting
from digirl_dist.fleet.session import Effects, Session
from digirl_dist.fleet.spec import Job
from digirl_dist.fleet.worker_events import Lost, Pulled, WorkerEvent
from digirl_dist.protocol import messages
from digirl_dist.protocol.messages import (
    EpisodeManifest,
    SlotLimits,
    decode_host_message,
    decode_worker_message,
    encode,
)
from digirl_dist.settings import LimitSettings
from digirl_dist.storage.status import Status
from digirl_dist.tasks import Key, Round, Task, Ticket
from digirl_dist.trajectory import Step, Trajectory

LATENCY_S = 0.01


class SimulatedWorker:
    """The rim of a session on virtual time. ``to_program`` and ``to_host`` say whether the link carries words."""

    def __init__(self, world: World, name: str, behaviour: Behaviour, limits: LimitSettings, post: Any) -> None:
        self.spec: Any = SimpleNamespace(name=name, slots=behaviour.slots, package="")
        self.program = SimulatedProgram(world, name, behaviour)
        self.to_program = self.to_host = True
        self._world, self._limits, self._post = world, limits, post
        self._job = Job(RUN, None, b"emulator", 10, SlotLimits(), 1, 60.0)
        self._coming_back = Reconnecting(limits, lambda low, high: (low + high) / 2)
        self._policy: Named | None = None
        self._session: Session | None = None
        self._heard_at = 0.0

    def start(self) -> None:
        self._world.later(0.0, self._connect)

    def publish(self, policy: Named) -> None:
        self._policy = policy
        self._ask(lambda session: session.announce(policy, self._world.now))

    def lease(self, tickets: Sequence[Ticket]) -> None:
        self._ask(lambda session: session.lease(tickets))

    def drop(self, keys: Sequence[Key], lost_to: str) -> None:
        self._ask(lambda session: session.drop(keys, lost_to))

    def forget(self, episode_id: str) -> None:
        self._ask(lambda session: session.forget(episode_id))

    def collected(self) -> None:
        self._ask(Session.collected)

    def refuse(self, error: WorkerError) -> None:
        if self._session is not None:
            self._lost(error)

    def pull(self, manifest: EpisodeManifest, ticket: Ticket, path: Path) -> None:
        session = self._session
        self._world.later(0.05, lambda: self._pulled(session, manifest, ticket, path))

    def _pulled(self, session: Session | None, manifest: EpisodeManifest, ticket: Ticket, path: Path) -> None:
        if session is self._session and self.to_host and manifest.episode_id in self.program.ready:
            step = Step(SEEN, 0, -1.0, 1.0, terminated=True, truncated=False)
            episode = Trajectory(ticket, manifest.episode_id, self.spec.name, 0, [step], SEEN, success=True)
            self._post(Pulled(self.spec.name, manifest, episode, path, 0.05))

    def _connect(self) -> None:
        now = self._world.now
        self._coming_back.connecting(now)
        if not (self.to_program and self.to_host):
            self._lost(LinkLostError(self.spec.name, "it cannot be reached"))
            return
        if self._coming_back.replace:
            self.program.kill()
        self._session, self._heard_at = Session(self.spec, self._job, self._limits, self._policy), now
        session = self._session
        self.program.say = lambda message: self._carry_to_host(session, message)
        self._ask(Session.greet)
        self._world.later(1.0, lambda: self._watch(session))
        self._world.later(2.0, lambda: self._beat(session))
        self._world.later(3.0, lambda: self._ping(session))

    def _ask(self, action: Callable[[Session], Effects]) -> None:
        if (session := self._session) is None:
            return
        for effect in action(session):
            match effect:
                case Send(message):
                    self._carry_to_program(session, message)
                case Push(what, _):
                    self._world.later(0.1, lambda what=what: self._ask(lambda one: one.pushed(what, 1)))
                case Tell(event):
                    self._post(event)
                case HangUp(error):
                    self._lost(error)
                    return

    def _carry_to_program(self, session: Session, message: messages.HostMessage) -> None:
        if self.to_program:
            arrived = decode_host_message(encode(message))
            same_program = self.program.say
            self._world.later(LATENCY_S, lambda: self.program.say is same_program and self.program.receive(arrived))

    def _carry_to_host(self, session: Session, message: messages.WorkerMessage) -> None:
        if self.to_host:
            line = encode(message)
            self._world.later(LATENCY_S, lambda: self._hear(session, decode_worker_message(line)))

    def _hear(self, session: Session, message: messages.WorkerMessage) -> None:
        if session is self._session:
            self._heard_at = self._world.now
            self._ask(lambda one: one.receive(message, b"", self._world.now))

    def _watch(self, session: Session) -> None:
        if session is not self._session:
            return
        if self._world.now - self._heard_at > session.patience_s:
            silent = LinkLostError(self.spec.name, "nothing was heard")
            self._lost(session.silent(self.to_program and self.to_host, silent))
        else:
            self._world.later(1.0, lambda: self._watch(session))

    def _beat(self, session: Session) -> None:
        if session is self._session and self.program.say is not None:
            self.program.beat()
            self._world.later(2.0, lambda: self._beat(session))

    def _ping(self, session: Session) -> None:
        if session is self._session:
            self._ask(Session.ping)
            self._world.later(3.0, lambda: self._ping(session))

    def _lost(self, error: WorkerError) -> None:
        self._session = None
        pause_s = self._coming_back.lost(error, self._world.now)
        self._post(Lost(self.spec.name, error, pause_s if self._coming_back.is_out_of_service else None))
        if pause_s is not None:
            self._world.later(pause_s, self._connect)


class SimulatedFleet:
    """Fulfils what a collector needs of a ``Fleet``."""

    def __init__(self, world: World, behaviours: dict[str, Behaviour], limits: LimitSettings) -> None:
        self._world = world
        self._events: deque[WorkerEvent] = deque()
        self.workers = {
            name: SimulatedWorker(world, name, each, limits, self._events.append) for name, each in behaviours.items()
        }

    def start(self) -> None:
        for worker in self.workers.values():
            worker.start()

    def publish(self, checkpoint: Any, in_use: Any = frozenset()) -> None:
        for worker in self.workers.values():
            worker.publish(Named(checkpoint.iteration))

    def next_event(self, timeout_s: float) -> WorkerEvent | None:
        until = self._world.now + timeout_s
        while not self._events and self._world.advance(until):
            pass
        return self._events.popleft() if self._events else None

    def close(self) -> None: ...


class MemoryStore:
    """A trajectory store without files."""

    def __init__(self) -> None:
        self.episodes: dict[Round, dict[Key, Trajectory]] = {}
        self.refused = 0
        self.pulled_to: list[str] = []

    def incoming(self, counts_in: Round, name: str) -> Path:
        self.pulled_to.append(name)
        return Path(name)

    def landed(self, wanted: Round) -> dict[Key, Trajectory]:
        return dict(self.episodes.get(wanted, {}))

    def is_closed(self, wanted: Round) -> bool:
        return False

    def left_out(self, iteration: int) -> tuple[list[Ticket], list[Ticket]]:
        return [], []

    def land(self, counts_in: Round, trajectory: Trajectory, checked: Path | None = None) -> bool:
        known = self.episodes.setdefault(counts_in, {})
        if trajectory.ticket.key in known:
            self.refused += 1
            return False
        known[trajectory.ticket.key] = trajectory
        return True


class Recorder:
    """Events in memory."""

    def __init__(self, world: World) -> None:
        self._world = world
        self.lines: list[tuple[float, str, dict[str, Any]]] = []

    def emit(self, kind: str, **content: Any) -> None:
        self.lines.append((self._world.now, kind, content))

    def of(self, kind: str) -> list[dict[str, Any]]:
        return [content for _, one, content in self.lines if one == kind]


class SilentStatus(Status):
    """Kept, and not written."""

    def write(self) -> None: ...


@dataclass
class Simulation:
    """A collector on a simulated fleet, and everything that a test may want to look at."""

    world: World
    fleet: SimulatedFleet
    store: MemoryStore
    events: Recorder
    collector: FleetCollector

    @classmethod
    def of(cls, behaviours: dict[str, Behaviour], limits: LimitSettings, **rules: Any) -> Simulation:
        world = World()
        fleet, store, events = SimulatedFleet(world, behaviours, limits), MemoryStore(), Recorder(world)
        status = SilentStatus(Path("status.json"))
        parts: list[Any] = [fleet, limits, DispatchRules(**rules), Closing(), store, events, status]
        return cls(world, fleet, store, events, FleetCollector(*parts, max_steps=10, clock=world.clock))

    def collect(self, tickets: Sequence[Ticket]) -> Any:
        checkpoint: Any = SimpleNamespace(iteration=tickets[0].iteration)
        return self.collector.collect(checkpoint, tickets)


def tickets(count: int, iteration: int = 0) -> list[Ticket]:
    return [Ticket(iteration, index, Task("t"), index, iteration) for index in range(count)]
