"""Collection on a fleet of workers: push the checkpoint, lease the tickets, pull each episode as it ends."""

from __future__ import annotations

import itertools
import queue
import threading
import time
from collections.abc import Sequence
from typing import Any

from digirl_dist.collect.accounts import IterationStats
from digirl_dist.collect.dispatch import Dispatch, DispatchRules
from digirl_dist.collect.iteration import Iteration, later_of
from digirl_dist.collect.leases import Leases, Ledger, LossKind, lease_seconds
from digirl_dist.collect.pace import Lengths
from digirl_dist.collect.reliability import Reliability
from digirl_dist.collect.rest import Rest
from digirl_dist.collect.stream import Stream
from digirl_dist.collect.worker_table import WorkerTable
from digirl_dist.collection import CollectionResult
from digirl_dist.emulator.episode_limits import MOST_STEPS
from digirl_dist.errors import CollectionError, DigirlDistError, MisconductError, failure_here
from digirl_dist.fleet.fleet import Fleet
from digirl_dist.fleet.worker_events import (
    LeasesLost,
    Lost,
    PolicyLoaded,
    Pulled,
    PullRefused,
    Said,
    Words,
    WorkerEvent,
)
from digirl_dist.protocol.messages import (
    Acting,
    EpisodeFailed,
    EpisodeManifest,
    EpisodeReady,
    SlotSeconds,
    Working,
)
from digirl_dist.settings import LimitSettings
from digirl_dist.storage.checkpoint import Checkpoint
from digirl_dist.storage.events import Events
from digirl_dist.storage.status import Status
from digirl_dist.storage.trajectory_store import Store
from digirl_dist.tasks import Key, Round, Ticket
from digirl_dist.types import Clock

_LOOK_S = 0.5
_ACCOUNTS_S = 1.0
_OVERDUE_EVERY_S = 2.0
_MOST_SPARES = 8
"""Episodes of one ticket that a worker may have beside the one that is on its way: each of its losses leaves one."""
_OLD_PAGES = 8
"""Of a stream; nothing counts in pages before them any more."""
_TOGETHER = 64
"""Events for which an episode that has landed waits, so that others are flushed with it."""


class FleetCollector:
    """Collector on machines over SSH, or on a Ray cluster: the fleet knows which."""

    def __init__(
        self,
        fleet: Fleet[Any],
        limits: LimitSettings,
        rules: DispatchRules,
        store: Store,
        events: Events,
        status: Status,
        most_steps: int = MOST_STEPS,
        clock: Clock = time.monotonic,
        ledger: Ledger | None = None,
        lengths: Lengths | None = None,
    ) -> None:
        self.clock = clock
        self.fleet = fleet
        self.limits = limits
        self.store = store
        self.status = status
        self.leases = Leases(limits.episode_attempts, clock, lease_seconds(limits, most_steps), ledger, lengths)
        self.reliability = Reliability(limits, clock)
        self.table = WorkerTable(fleet, self.leases, limits, events, status, clock)
        self.dispatch = Dispatch(fleet, self.table.states, self.leases, self.reliability, rules, events, clock)
        self.all_stats: dict[Round, IterationStats] = {}
        self.prefetches: queue.SimpleQueue[tuple[Checkpoint, Sequence[Ticket]]] = queue.SimpleQueue()
        self.spares: dict[tuple[str, Key], set[str]] = {}
        """Episodes that a worker has beside the one of the same ticket that is being pulled from there."""
        self.pulls = itertools.count()
        """Keeps the files of two pulls apart, also of one ticket."""
        self.closed = threading.Event()
        self._rest = Rest(fleet, self._take_in, self.table.show, self._turn)
        self.fleet.start()

    def attend(self) -> None:
        """From now on, what workers say is read also while nothing is collected."""
        self._rest.begin()

    def collect(self, checkpoint: Checkpoint, tickets: Sequence[Ticket]) -> CollectionResult:
        with self._rest.paused():
            iteration = Iteration(tickets, self.leases, self.store, self.limits.set_aside_share)
            for reason in iteration.left_aside:
                self.table.tell_all("episode_left_aside", reason=reason)
            with iteration:
                _Collection(self, checkpoint, iteration).run()
                self.fleet.rest()
                return iteration.close(self.all_stats.pop(iteration.round))

    def stream(self, checkpoint: Checkpoint, stream: Stream) -> None:
        """Runs what the stream is asked for until it is closed. Raises CollectionError if nobody can."""
        with self._rest.paused():
            stream.begin(self.leases, self.fleet.wake)
            _Collection(self, checkpoint, stream).run()

    def push(self, checkpoint: Checkpoint) -> None:
        """Begins to send a checkpoint to the workers, while nothing is collected."""
        with self._rest.paused():
            self.fleet.publish(checkpoint, self.leases.versions())

    def prefetch(self, checkpoint: Checkpoint, tickets: Sequence[Ticket]) -> None:
        self.prefetches.put((checkpoint, tickets))

    def close(self) -> None:
        self.closed.set()
        self._rest.close()
        self.fleet.close()

    def _take_in(self, event: WorkerEvent) -> None:
        """Handles an event that concerns a worker and no episode, while nothing is collected."""
        if self.table.is_for_a_known(event):
            if isinstance(event, Lost):
                self.lost(event)
            self.table.take_in(event)

    def _turn(self) -> None:
        self.table.let_go()
        self.status.write_if_due()

    def lost(self, lost: Lost) -> None:
        """Forgets what counted on the worker, before the table takes the loss in."""
        for spare in [spare for spare in self.spares if spare[0] == lost.worker]:
            del self.spares[spare]  # it announces them when it comes back
        if lost.out_s is not None or isinstance(lost.error, MisconductError):  # it is to blame, and not the tickets
            self.leases.forgive(lost.worker)
            self.reliability.suspect(lost.worker)


class _Collection:
    """A collection under way: one iteration, from the first event to the last landed episode, or a stream."""

    def __init__(self, collector: FleetCollector, checkpoint: Checkpoint, iteration: Iteration | Stream) -> None:
        self._collector = collector
        self._fleet = collector.fleet
        self._dispatch = collector.dispatch
        self._table = collector.table
        self._leases = collector.leases
        self._checkpoint = checkpoint
        self._iteration = iteration
        self._stats.started_at = self._collector.clock()
        self._asked: set[str] = set()
        self._unflushed: list[tuple[Pulled, bool]] = []
        """Episodes that came, and whether they landed, or had landed before."""
        self._overdue_at = 0.0

    @property
    def _stats(self) -> IterationStats:
        """Those of the iteration, or of the stream's newest page."""
        return self._stats_of(self._iteration.round)

    def run(self) -> None:
        self._tell_progress()
        self._table.begin()
        for name, state in self._table.states.items():
            self._stats.has_slots(name, state.slots)
        if not self._iteration.is_over:
            self._dispatch.hand_out(self._checkpoint.iteration)  # emulators reset while the checkpoint comes
            self._fleet.publish(self._checkpoint, self._leases.versions())
        while not self._iteration.is_over:
            self._turn(_LOOK_S)
            self._tell_progress()
            self._table.check_that_somebody_can(self._iteration.number, self._iteration.missing)
        self._settle_accounts()
        self._collector.status.collected(self._iteration.round)

    def _tell_progress(self) -> None:
        iteration = self._iteration
        self._collector.status.collecting(iteration.round, iteration.landed, iteration.wanted)

    def _turn(self, timeout_s: float) -> None:
        """Leases what there is, then handles the next event, if one comes in that time."""
        if self._collector.closed.is_set():
            raise CollectionError(
                f"iteration {self._iteration.number}: the collection was ended before it was complete"
            )
        self._take_prefetched()
        for key in self._iteration.turn():
            self._dispatch.landed(key)
        self._end_overdue_leases()
        self._dispatch.hand_out(self._checkpoint.iteration, self._iteration.goes_on > 0)
        self._table.let_go()
        event = self._fleet.next_event(min(timeout_s, self._dispatch.again_in_s))
        if event is not None:
            self._take_in(event)
        for _ in range(_TOGETHER):
            if not self._unflushed or (event := self._fleet.next_event(0.0)) is None:
                break
            self._take_in(event)
        self._make_durable()

    def _take_prefetched(self) -> None:
        newest = self._checkpoint
        while not self._collector.prefetches.empty():  # this is its only reader
            checkpoint, tickets = self._collector.prefetches.get()
            newest = max(newest, checkpoint, key=lambda one: one.iteration)
            self._iteration.begin_later(tickets)
        if newest is not self._checkpoint:
            self._checkpoint = newest
            self._fleet.publish(newest, self._leases.versions())

    def _end_overdue_leases(self) -> None:
        """Looks through all leases, and therefore not at every turn."""
        if (now := self._collector.clock()) < self._overdue_at:
            return
        self._overdue_at = now + _OVERDUE_EVERY_S
        for worker, key in self._leases.overdue():
            reason = "its worker held it for longer than limits.lease_s without a word"
            self._retry(worker, None, key, reason)

    def _settle_accounts(self) -> None:
        """Asks every worker where its slots' time went; a late answer counts in the next iteration."""
        states = self._table.states
        self._asked = {name for name, each in states.items() if each.slots}
        for name in sorted(self._asked):
            self._fleet.workers[name].collected()
        deadline = self._collector.clock() + _ACCOUNTS_S
        while self._asked and (left_s := deadline - self._collector.clock()) > 0:
            self._turn(left_s)
        for name in [name for name, each in states.items() if not each.slots]:
            self._stats.spent(name, self._table.ledger.book(name))

    def _stats_of(self, wanted: Round) -> IterationStats:
        known = self._collector.all_stats
        if wanted not in known:
            for old in [each for each in known if each.number < self._iteration.number - _OLD_PAGES]:
                del known[old]
            known[wanted] = IterationStats(wanted, self._collector.clock)
        return known[wanted]

    def _take_in(self, event: WorkerEvent) -> None:
        if not self._table.is_for_a_known(event):
            return
        try:
            self._act_on(event)
        except DigirlDistError:
            raise
        except Exception as defect:
            if not isinstance(event, Words):
                raise
            self._stumble(event, defect)

    def _stumble(self, event: Words, defect: Exception) -> None:
        """Has a defect of ours cost the worker whose words met it. Raises CollectionError if all workers' words do."""
        said = event.message if isinstance(event, Said) else event
        error = failure_here(event.worker, f"handle a {type(said).__name__}", defect)
        self._table.tell("handling_failed", event.worker, reason=error.reason, remedy=error.remedy)
        is_there = {name: state.slots > 0 for name, state in self._table.states.items()}
        if self._collector.reliability.defect(event.worker, is_there):
            raise CollectionError(
                f"iteration {self._iteration.number}: it fails with every worker\n  {error}"
            ) from defect
        self._iteration.mend()
        self._fleet.workers[event.worker].refuse(error)

    def _act_on(self, event: WorkerEvent) -> None:
        match event:
            case Said(worker, message):
                self._hear(worker, message, event)
            case PolicyLoaded(worker, version, push_s, push_bytes):
                self._loaded(worker, version, push_s, push_bytes)
            case Pulled():
                self._table.fetched(event.worker)
                self._land(event)
            case PullRefused(worker, manifest, reason):
                self._table.fetched(worker)
                self._refused(worker, manifest, reason)
            case LeasesLost(worker, keys):
                for key in keys:
                    self._retry(worker, None, key, "the worker program lost the ticket without a word")
            case Lost(worker, error):
                self._stats.worker_result(worker).losses.append(error.reason)
                self._asked.discard(worker)
                self._collector.lost(event)
                self._table.take_in(event)
            case _:
                self._table.take_in(event)

    def _hear(self, worker: str, message: object, event: WorkerEvent) -> None:
        """Handles what a worker program says of episodes; what it says of itself goes to the table."""
        match message:
            case Acting(slot, key):
                self._stats_of(later_of(self._iteration.round, key)).acting(worker, slot)
            case EpisodeReady(manifest):
                self._ended(worker, manifest)
            case EpisodeFailed(slot, key, reason, by):
                self._retry(worker, slot, key, reason, by=by)
            case SlotSeconds(seconds):
                self._stats.spent(worker, self._table.ledger.book(worker, seconds))
                self._asked.discard(worker)
            case Working(slots):
                self._stats.has_slots(worker, slots)
                self._table.take_in(event)
            case _:
                self._table.take_in(event)

    def _loaded(self, worker: str, version: int, push_s: float, push_bytes: int) -> None:
        worker_result = self._stats.worker_result(worker)
        worker_result.push_s += push_s
        worker_result.push_bytes += push_bytes
        self._table.tell("pushed", worker, version=version, seconds=round(push_s, 4), bytes=push_bytes)

    def _ended(self, worker: str, manifest: EpisodeManifest) -> None:
        """Pulls the episode if its ticket is still open; a stale or repeated one is deleted unread."""
        key = manifest.key
        if key not in self._leases.tickets or self._leases.is_of_others(worker, manifest):
            self._table.tell("episode_dropped", worker, episode=manifest.episode_id, reason="not wanted any more")
            self._fleet.workers[worker].forget(manifest.episode_id)
            return
        leased = self._leases.as_leased(worker, manifest)
        if leased is None:
            self._refused(worker, manifest, "its ticket was not leased to this worker, or as another attempt")
        elif manifest.size > (most_mb := self._collector.limits.episode_mb) * (1 << 20):
            reason = f"its file of {manifest.size} bytes is larger than limits.episode_mb={most_mb:g}"
            self._refused(worker, manifest, reason)
        elif self._leases.expect(worker, key, manifest.attempt):
            ticket, grant = leased
            spent_s = sum(manifest.spent.values())  # without what it waited for the checkpoint
            self._dispatch.pace.ended(worker, spent_s)
            self._leases.lengths.ended(worker, ticket.task.id, spent_s)
            self._stats.ended(worker, grant.seconds(manifest.seconds, self._collector.clock()), manifest.age_s)
            name = f"{worker}-{key.iteration}-{key.number}-{next(self._collector.pulls)}"
            path = self._collector.store.incoming(key.round, name)
            self._fleet.workers[worker].pull(manifest, ticket, path)
            self._table.fetches(worker)
        elif len(spares := self._collector.spares.setdefault((worker, key), set())) < _MOST_SPARES:
            spares.add(manifest.episode_id)
        else:
            self._refused(worker, manifest, f"there are {_MOST_SPARES} others of its ticket")

    def _land(self, pulled: Pulled) -> None:
        """Stores the episode, which is durable after ``_make_durable``."""
        worker, manifest = pulled.worker, pulled.manifest
        key = manifest.key
        stats = self._stats_of(key.round)
        self._stats.worker_result(worker).pull_bytes += manifest.size
        self._dispatch.landed(key)
        leased = self._leases.as_leased(worker, manifest)
        is_new = self._iteration.land(pulled.trajectory, pulled.path)
        if is_new:
            stats.seconds[key] = (
                leased[1].seconds(manifest.seconds, self._collector.clock()) if leased else manifest.seconds
            )
        else:
            pulled.path.unlink(missing_ok=True)
        self._collector.reliability.landed(worker)
        self._unflushed.append((pulled, is_new))

    def _make_durable(self) -> None:
        """Flushes the episodes that have landed, and only then lets their workers delete them."""
        if self._unflushed:
            self._collector.store.flush()
        for pulled, is_new in self._unflushed:
            if is_new:
                self._table.landed(pulled)
            self._forget(pulled.worker, pulled.manifest)
        self._unflushed.clear()
        self._iteration.made_durable()

    def _refused(self, worker: str, manifest: EpisodeManifest, reason: str) -> None:
        self._table.tell("episode_refused", worker, episode=manifest.episode_id, reason=reason)
        self._forget(worker, manifest)
        self._retry(worker, manifest.slot, manifest.key, reason, manifest.attempt)

    def _forget(self, worker: str, manifest: EpisodeManifest) -> None:
        """Lets the worker delete the episode, and others of its ticket."""
        for episode in sorted({manifest.episode_id, *self._collector.spares.pop((worker, manifest.key), ())}):
            self._fleet.workers[worker].forget(episode)

    def _retry(
        self,
        worker: str,
        slot: int | None,
        key: Key,
        reason: str,
        attempt: int | None = None,
        by: LossKind = "infrastructure",
    ) -> None:
        if key not in self._leases.tickets:
            return
        self._stats.worker_result(worker).retried += 1
        self._table.tell("episode_retried", worker, slot=slot, **key.place(), reason=reason)
        is_set_aside = self._leases.fail(worker, key, reason, self._table.able(), attempt, by)
        if fault := self._leases.faults.news():
            self._table.tell_all("equal_faults", reason=fault)
        if worker not in self._leases.holders(key):
            self._fleet.workers[worker].drop([key], "faults")  # it may run what it announced
        if is_set_aside:
            self._table.tell_all("ticket_set_aside", **self._leases.why_set_aside(key))
        elif self._leases.is_blamed_on_one(key) and self._collector.reliability.failed(
            worker, key, self._table.states[worker].slots
        ):
            error = MisconductError(worker, f"all that it is given fails, at last: {reason}", proven=True)
            self._fleet.workers[worker].refuse(error)
