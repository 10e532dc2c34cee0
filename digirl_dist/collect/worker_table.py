"""Which workers are there and able: they join, fail, come back, are added and leave."""

from __future__ import annotations

import math
from dataclasses import dataclass, field, replace
from typing import Any

import msgspec

from digirl_dist.collect.accounts import SlotTimeLedger
from digirl_dist.collect.leases import Leases
from digirl_dist.errors import CollectionError, HandlingError, HostFullError, WorkerError
from digirl_dist.fleet.fleet import Fleet
from digirl_dist.fleet.worker_events import (
    Added,
    ClaimsRefused,
    Connecting,
    DiskFull,
    Leaving,
    Lost,
    Pulled,
    Relayed,
    RosterRefused,
    Said,
    Throttled,
    WorkerEvent,
)
from digirl_dist.protocol.messages import Heartbeat, MachineFacts, Ready, SlotChanged, UnknownFile, Working
from digirl_dist.settings import LimitSettings
from digirl_dist.storage import strict_json
from digirl_dist.storage.events import Events
from digirl_dist.storage.status import Status, WorkerStatus
from digirl_dist.types import Clock, Json

_EVENTS, _EVENTS_PER_S = 60.0, 40.0
"""Events that a worker may cause at once, and every second: together 100 in any second."""
_EVENT_BYTES, _EVENT_BYTES_PER_S = 250_000.0, 12_000.0
"""The same of their bytes: together less than a megabyte in any minute."""
_LONGEST_ENTRY = 4000
"""Bytes of an entry of an event, as they are stored."""
_EVENT_OVERHEAD = 200
"""Bytes of an event beside its entries."""
_QUEUED_EVERY_S = 30.0
_SHOWN = 10
"""Refused claims that an event names."""
_SHORT_REASON = 400


@dataclass
class WorkerState:
    """What the host knows of a worker between its events."""

    slots: int = 0
    in_service: int = 0
    error: WorkerError | None = None
    slot_reasons: dict[int, str] = field(default_factory=dict)
    leaving: bool = False
    """Whether it gets no further tickets."""
    is_out: bool = False
    """Whether it is out of service for what it did, or for good."""
    is_final: bool = False
    """Whether it is out for good."""
    on_trial_until: float = math.inf
    """Until when it counts as able, unless an episode of it lands: it was out of service, or failed for good."""
    queued_at: float | None = None
    """Since when it waits in a queue of others; None: it does not."""
    told_at: float = -math.inf
    """When it was last told that it waits."""
    busy_until: float = -math.inf
    """How long its installation, or whatever else may take long, is waited for."""

    def waits(self, now: float) -> bool:
        """Returns whether it is waited for, however long no worker could run anything."""
        return self.queued_at is not None or now <= self.busy_until

    @property
    def able(self) -> bool:
        """Whether it may be given tickets; it may reset emulators while it still loads the checkpoint."""
        return self.in_service > 0 and not self.leaving


@dataclass
class _Told:
    """What events a worker may still cause."""

    at: float
    """When that was so."""
    events: float = _EVENTS
    bytes: float = _EVENT_BYTES
    left_out: int = 0

    def refill(self, now: float) -> None:
        seconds, self.at = now - self.at, now
        self.events = min(_EVENTS, self.events + _EVENTS_PER_S * seconds)
        self.bytes = min(_EVENT_BYTES, self.bytes + _EVENT_BYTES_PER_S * seconds)


class WorkerTable:
    """The state of every worker, by its events; what happens to workers is told in events and status."""

    def __init__(
        self,
        fleet: Fleet[Any],
        leases: Leases,
        limits: LimitSettings,
        events: Events,
        status: Status,
        clock: Clock,
    ) -> None:
        self.states = {name: WorkerState() for name in fleet.workers}
        self.ledger = SlotTimeLedger(clock)
        self._clock = clock
        self._fleet = fleet
        self._leases = leases
        self._limits = limits
        self._events = events
        self._status = status
        self._able_at = self._clock()
        self._has_landed = False
        self._busy_until: dict[str, float] = {}
        """Until when workers are waited for that are being installed; once, until they have brought an episode home."""
        self._told: dict[str, _Told] = {}

    def is_for_a_known(self, event: WorkerEvent) -> bool:
        """Returns False for what comes of a worker that was let go."""
        worker = getattr(event, "worker", None)
        return worker is None or worker in self.states or isinstance(event, Added)

    def take_in(self, event: WorkerEvent) -> None:
        """Handles events that concern workers rather than episodes."""
        match event:
            case Said(worker, Ready(machine=MachineFacts() as machine)):
                self.tell("worker_machine", worker, **msgspec.to_builtins(machine))
            case Said(worker, Working() as working):
                self._joined(worker, working)
            case Said(worker, SlotChanged(slot, state, reason, in_service)):
                self._slot_changed(worker, slot, state, reason, in_service)
            case Said(worker, Heartbeat() as beat):
                self._alive(worker, beat)
            case Said(worker, UnknownFile(name, reason)):
                self.tell("episode_refused", worker, episode=name, reason=reason)
            case ClaimsRefused(worker, keys):
                reason = "the worker program claims tickets that it was not leased; it is told to drop them"
                some = [key.name for key in keys[:_SHOWN]]
                self.tell("claims_refused", worker, tickets=some, claims=len(keys), reason=reason)
            case Throttled(worker, reason):
                self.tell("worker_throttled", worker, reason=reason)
            case Lost():
                self._lost(event)
            case Connecting():
                self._connecting(event)
            case Relayed(worker, source, size, seconds, reason):
                why = {"reason": reason} if reason else {}
                kind = "relay_failed" if reason else "relayed"
                self.tell(kind, worker, source=source, bytes=size, seconds=round(seconds, 4), **why)
            case DiskFull(worker, reason):
                self.tell("disk_full", worker, reason=reason, remedy="free some space on the host")
            case Added(worker):
                self.states[worker] = WorkerState()
                self.tell("worker_added", worker)
            case Leaving(worker):
                self.states[worker].leaving = True
                self.tell("worker_leaving", worker)
            case RosterRefused(reason):
                self._events.emit("roster_refused", reason=reason)

    def able(self) -> list[str]:
        """Returns the workers that may be given tickets."""
        return [name for name, state in self.states.items() if state.able]

    def tell(self, kind: str, worker: str, **content: Json) -> None:
        """Emits an event of a worker and shows it in the status; leaves out what comes too often, and counts it."""
        content = {key: _short(entry) for key, entry in content.items()}
        said = ", ".join(f"{key} {value}" for key, value in content.items() if value not in ("", None))
        seen = self._status.worker(worker)
        seen.last_event = f"{kind}: {said}"
        if content.get("reason") and kind != "episode_dropped":  # an episode that is not wanted costs nothing
            seen.last_trouble, seen.troubled_at = seen.last_event, self._clock()
        if self._may_tell(kind, worker, len(strict_json.dumps(content))):
            self._events.emit(kind, worker=worker, **content)

    def fetches(self, worker: str) -> None:
        """Notes that the file of an episode is to come."""
        seen = self._status.worker(worker)
        seen.fetching += 1
        seen.fetched_at = seen.fetched_at or self._clock()

    def fetched(self, worker: str) -> None:
        """Notes that a file came, or will not come."""
        seen = self._status.worker(worker)
        seen.fetching = max(0, seen.fetching - 1)
        seen.fetched_at = self._clock() if seen.fetching else None

    def landed(self, pulled: Pulled) -> None:
        """Tells of an episode that is durable."""
        self._has_landed = True
        self._busy_until.pop(pulled.worker, None)
        self.states[pulled.worker].on_trial_until = math.inf
        manifest = pulled.manifest
        self.tell(
            "episode",
            pulled.worker,
            **manifest.key.place(),
            success=pulled.trajectory.success,
            reward=pulled.trajectory.reward,
            attempt=manifest.attempt,
            policy_version=manifest.policy_version,
            digest=manifest.digest,
            pull_s=round(pulled.pull_s, 4),
            task=pulled.trajectory.ticket.task.id,
            seconds=round(float(sum(manifest.spent.values())), 3),
        )

    def _may_tell(self, kind: str, worker: str, size: int) -> bool:
        """Episodes that landed, each of which had a lease, are always told, and a worker's coming and going."""
        now = self._clock()
        told = self._told.setdefault(worker, _Told(now))
        told.refill(now)
        is_always_told = kind == "episode" or kind.startswith("worker_")
        if not is_always_told and (told.events < 1.0 + bool(told.left_out) or told.bytes < 0):
            told.left_out += 1
            return False
        told.events, told.bytes = told.events - 1.0, told.bytes - size - _EVENT_OVERHEAD
        if told.left_out and told.events >= 1.0:
            self._events.emit("events_left_out", worker=worker, count=told.left_out)
            told.events, told.left_out = told.events - 1.0, 0
        return True

    def let_go(self) -> None:
        """Removes leaving workers that hold no lease any more."""
        for name in [name for name, state in self.states.items() if state.leaving]:
            if not self._leases.holds(name):
                self._fleet.remove(name)
                del self.states[name]
                self.ledger.left(name)
                self._status.workers.pop(name, None)
                self._events.emit("worker_left", worker=name)

    def check_that_somebody_can(self, iteration: int, missing: int) -> None:
        """Raises CollectionError when every worker is out for good, or none could run anything for too long.

        A fleet that is out of service altogether for a while is waited for as long as one that is away if it has
        brought an episode home, as what stopped it may pass; a defect of this program will not. A worker's installation
        is waited for as long as it may take. Workers that come back count as able for as long as an episode may take
        until one lands, so that a fleet of liars comes to an end.
        """
        now, states = self._clock(), self.states.values()
        waits = not missing or any(state.waits(now) for state in states)
        if waits or any(state.able and now <= state.on_trial_until for state in states):
            self._able_at = now
        if waits or any(state.able for state in states):
            return
        for_good = all(self._is_over(state) for state in states)
        if for_good or now - self._able_at > self._limits.no_worker_s:
            waited = "" if for_good else f" for {self._limits.no_worker_s:.0f} s"
            reasons = "\n  ".join(self._why_unable(name) for name in self.states)
            raise CollectionError(
                f"iteration {iteration}: no worker could run anything{waited}, missing episodes: {missing}\n  {reasons}"
            )

    def _is_over(self, state: WorkerState) -> bool:
        """Returns whether a worker that can run nothing is not waited for."""
        is_closed = state.slots > 0 and state.in_service == 0
        may_pass = self._has_landed and not isinstance(state.error, HandlingError)
        return is_closed or state.is_final or (state.is_out and not may_pass)

    def _why_unable(self, name: str) -> str:
        state = self.states[name]
        if state.error is not None:
            return str(state.error)
        if state.slots and not state.in_service:
            return f"worker {name}: every emulator failed: {next(iter(state.slot_reasons.values()), '')}"
        return f"worker {name}: it has not answered yet ({self._status.worker(name).doing})"

    def _connecting(self, event: Connecting) -> None:
        worker, doing, limit_s = event.worker, event.doing, event.limit_s
        state, now = self.states[worker], self._clock()
        seen = self._status.worker(worker)
        trouble, at = seen.last_trouble, seen.troubled_at
        self._status.workers[worker] = WorkerStatus(doing, limit_s=limit_s, last_trouble=trouble, troubled_at=at)
        if limit_s is not None:
            state.queued_at = None
            is_long = event.is_installing and limit_s > self._limits.no_worker_s
            state.busy_until = self._busy_until.setdefault(worker, now + limit_s) if is_long else -math.inf
            return
        if state.queued_at is None:
            state.queued_at = state.told_at = now
        self._status.workers[worker].since = state.queued_at
        if now - state.told_at >= _QUEUED_EVERY_S:
            state.told_at = now
            self.tell("worker_queued", worker, doing=doing, seconds=round(now - state.queued_at))

    def _joined(self, worker: str, working: Working) -> None:
        slots, held = working.slots, working.held
        self.ledger.joined(worker, slots)
        self.states[worker] = replace(self.states[worker], slots=slots, in_service=slots, error=None, is_out=False)
        if working.reason:
            self._status.worker(worker).bsize = f"bsize: auto chose {slots}: {working.reason}"
            self.tell("bsize", worker, slots=slots, reason=working.reason)
        wanted = {key for key in held if self._leases.adopt(worker, key)}
        unwanted = [key for key in held if key not in wanted]
        if unwanted:
            self._fleet.workers[worker].drop(unwanted, "faults")
        self.tell("worker_joined", worker, slots=slots, still_running=len(wanted))

    def _lost(self, lost: Lost) -> None:
        worker, error, final = lost.worker, lost.error, lost.is_final
        released = self._leases.release(worker)
        self.ledger.lost(worker)
        known, is_out = self.states[worker], final or lost.out_s is not None
        trial_s = (
            self._limits.no_worker_s if error.fatal else self._leases.lease_s if lost.out_s is not None else math.inf
        )
        until = min(known.on_trial_until, self._clock() + trial_s)
        self.states[worker] = WorkerState(
            error=error, leaving=known.leaving, is_out=is_out, is_final=final, on_trial_until=until
        )
        seen = self._status.worker(worker)
        seen.doing = "out for good" if final else "out of service" if is_out else "lost, to be tried again"
        seen.since, seen.limit_s, seen.slots, seen.lost = self._clock(), None, [], True
        seen.fetching, seen.fetched_at = 0, None
        kind = "disk_full" if isinstance(error, HostFullError) else "worker_lost"
        self.tell(kind, worker, reason=error.reason, remedy=error.remedy, fatal=final, released=released)
        if lost.out_s is not None:
            self.tell("worker_out_of_service", worker, seconds=lost.out_s, reason=error.reason)

    def _slot_changed(self, worker: str, slot: int, state: str, reason: str, in_service: int) -> None:
        known = self.states[worker]
        known.in_service = min(in_service, known.slots)
        known.slot_reasons[slot] = reason[-_SHORT_REASON:]
        self.tell("slot", worker, slot=slot, state=state, reason=reason)

    def _alive(self, worker: str, beat: Heartbeat) -> None:
        if self.states[worker].slots:
            self.states[worker].in_service = min(beat.in_service, self.states[worker].slots)
        seen = self._status.worker(worker)
        seen.heard_at = self._clock()
        seen.doing, seen.since, seen.limit_s = beat.doing, seen.heard_at - beat.for_s, self._limits.stuck_s
        seen.slots = [msgspec.structs.asdict(slot) for slot in beat.slots]


def _short(entry: Json) -> Json:
    """Returns an entry of an event, of which only so much is stored: the end of a text, and nothing long besides."""
    if not isinstance(entry, str):
        size = 0 if isinstance(entry, float | int | None) else len(strict_json.dumps(entry))
        return entry if size <= _LONGEST_ENTRY else f"… {size} bytes …"
    kept = entry[-_LONGEST_ENTRY:]
    while len(strict_json.dumps(kept)) > _LONGEST_ENTRY:
        kept = kept[len(kept) // 4 + 1 :]
    return kept if len(kept) == len(entry) else "…" + kept
