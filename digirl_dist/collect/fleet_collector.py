"""Collection on a fleet of workers: push the checkpoint, lease the tickets, pull each episode as it ends."""

from __future__ import annotations

import itertools
import math
import time
from typing import Any

from digirl_dist.collect.accounts import IterationStats
from digirl_dist.collect.dispatch import Dispatch, DispatchRules
from digirl_dist.collect.leases import Leases, Ledger, LossKind, lease_seconds
from digirl_dist.collect.pace import Lengths
from digirl_dist.collect.pool import Pool
from digirl_dist.collect.reliability import Reliability
from digirl_dist.collect.worker_table import WorkerTable
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
from digirl_dist.tasks import Key
from digirl_dist.types import Clock

_ACCOUNTS_S = 1.0
_OVERDUE_EVERY_S = 2.0
_MOST_SPARES = 8
"""Episodes of one ticket that a worker may have beside the one that is on its way: each of its losses leaves one."""
_TOGETHER = 64
"""Events for which an episode that has landed waits, so that others are flushed with it."""


class FleetCollector(Pool):
    """Runs tickets on machines over SSH, or on a Ray cluster: the fleet knows which."""

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
        leases = Leases(limits.episode_attempts, clock, lease_seconds(limits, most_steps), ledger, lengths)
        super().__init__(leases, store, events, status, clock, limits.set_aside_share)
        self.before_result = self._rest
        self.table = WorkerTable(fleet, leases, limits, events, status, clock)
        self._fleet = fleet
        self._limits = limits
        self._reliability = Reliability(limits, clock)
        self._dispatch = Dispatch(fleet, self.table.states, leases, self._reliability, rules, events, clock)
        self._published: Checkpoint | None = None
        self._spares: dict[tuple[str, Key], set[str]] = {}
        """Episodes that a worker has beside the one of the same ticket that is being pulled from there."""
        self._pulls = itertools.count()
        """Keeps the files of two pulls apart, also of one ticket."""
        self._unflushed: list[tuple[Pulled, bool]] = []
        """Episodes that came, and whether they landed, or had landed before."""
        self._asked: set[str] = set()
        """Workers that have not told yet where their slots' time went."""
        self._asked_until: float | None = None
        self._overdue_at = 0.0
        fleet.start()

    def close(self) -> None:
        super().close()
        self._fleet.close()

    def _rest(self) -> None:
        """Has an engine sleep, before anything learns beside it, until the next round acts, also with the same
        checkpoint."""
        if not self._awaited:
            self._checkpoint = self._published = None
            self._fleet.rest()

    def _wake(self) -> None:
        self._fleet.wake()

    def _work(self, timeout_s: float) -> None:
        self._end_overdue_leases()
        if (newest := self._checkpoint) is not None:
            self._dispatch.hand_out(newest.iteration, self.goes_on > 0)  # emulators reset while the checkpoint comes
            if newest is not self._published:
                self._published = newest
                self._fleet.publish(newest, self.leases.versions())
        until_s = math.inf if self._asked_until is None else max(0.0, self._asked_until - self.clock())
        event = self._fleet.next_event(min(timeout_s, self._dispatch.again_in_s, until_s))
        if event is not None:
            self._take_in(event)
        for _ in range(_TOGETHER):
            if not self._unflushed or (event := self._fleet.next_event(0.0)) is None:
                break
            self._take_in(event)
        self._make_durable()
        self.table.let_go()
        self.table.check_that_somebody_can(self._number, self._missing)

    def _stop(self, key: Key) -> None:
        self._dispatch.landed(key)

    def _slots(self) -> dict[str, int]:
        return {name: state.slots for name, state in self.table.states.items()}

    def _end_overdue_leases(self) -> None:
        """Looks through all leases, and therefore not at every turn."""
        if (now := self.clock()) < self._overdue_at:
            return
        self._overdue_at = now + _OVERDUE_EVERY_S
        for worker, key in self.leases.overdue():
            self._retry(worker, None, key, "its worker held it for longer than limits.lease_s without a word")

    def _is_accounted(self, stats: IterationStats) -> bool:
        """A late answer counts in the next round."""
        slots = self._slots()
        if self._asked_until is None:
            self._asked_until = self.clock() + _ACCOUNTS_S
            self._asked = {name for name, count in slots.items() if count}
            for name in sorted(self._asked):
                self._fleet.workers[name].collected()
        if self._asked and self.clock() < self._asked_until:
            return False
        for name in [name for name, count in slots.items() if not count]:
            stats.spent(name, self.table.ledger.book(name))
        self._asked_until = None
        return True

    def _lost(self, lost: Lost) -> None:
        """Forgets what counted on the worker, before the table takes the loss in."""
        for spare in [spare for spare in self._spares if spare[0] == lost.worker]:
            del self._spares[spare]  # it announces them when it comes back
        if lost.out_s is not None or isinstance(lost.error, MisconductError):  # it is to blame, and not the tickets
            self.leases.forgive(lost.worker)
            self._reliability.suspect(lost.worker)

    def _take_in(self, event: WorkerEvent) -> None:
        if not self.table.is_for_a_known(event):
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
        self.table.tell("handling_failed", event.worker, reason=error.reason, remedy=error.remedy)
        is_there = {name: state.slots > 0 for name, state in self.table.states.items()}
        if self._reliability.defect(event.worker, is_there):
            raise CollectionError(f"iteration {self._number}: it fails with every worker\n  {error}") from defect
        self._mend()
        self._fleet.workers[event.worker].refuse(error)

    def _act_on(self, event: WorkerEvent) -> None:
        match event:
            case Said(worker, message):
                self._hear(worker, message, event)
            case PolicyLoaded(worker, version, push_s, push_bytes):
                self._loaded(worker, version, push_s, push_bytes)
            case Pulled():
                self.table.fetched(event.worker)
                self._take_home(event)
            case PullRefused(worker, manifest, reason):
                self.table.fetched(worker)
                self._refused(worker, manifest, reason)
            case LeasesLost(worker, keys):
                for key in keys:
                    self._retry(worker, None, key, "the worker program lost the ticket without a word")
            case Lost(worker, error):
                if self._rounds:
                    self._stats.worker_result(worker).losses.append(error.reason)
                self._asked.discard(worker)
                self._lost(event)
                self.table.take_in(event)
            case _:
                self.table.take_in(event)

    def _hear(self, worker: str, message: object, event: WorkerEvent) -> None:
        """Handles what a worker program says of episodes; what it says of itself goes to the table."""
        match message:
            case Acting(slot, key):
                self._acts(worker, slot, key)
            case EpisodeReady(manifest):
                self._ended(worker, manifest)
            case EpisodeFailed(slot, key, reason, by):
                self._retry(worker, slot, key, reason, by=by)
            case SlotSeconds(seconds):
                self._stats.spent(worker, self.table.ledger.book(worker, seconds))
                self._asked.discard(worker)
            case Working(slots):
                self._stats.has_slots(worker, slots)
                self.table.take_in(event)
            case _:
                self.table.take_in(event)

    def _loaded(self, worker: str, version: int, push_s: float, push_bytes: int) -> None:
        worker_result = self._stats.worker_result(worker)
        worker_result.push_s += push_s
        worker_result.push_bytes += push_bytes
        self.table.tell("pushed", worker, version=version, seconds=round(push_s, 4), bytes=push_bytes)

    def _ended(self, worker: str, manifest: EpisodeManifest) -> None:
        """Pulls the episode if its ticket is still open; a stale or repeated one is deleted unread."""
        key = manifest.key
        if key not in self.leases.tickets or self.leases.is_of_others(worker, manifest):
            self.table.tell("episode_dropped", worker, episode=manifest.episode_id, reason="not wanted any more")
            self._fleet.workers[worker].forget(manifest.episode_id)
            return
        leased = self.leases.as_leased(worker, manifest)
        if leased is None:
            self._refused(worker, manifest, "its ticket was not leased to this worker, or as another attempt")
        elif manifest.size > (most_mb := self._limits.episode_mb) * (1 << 20):
            reason = f"its file of {manifest.size} bytes is larger than limits.episode_mb={most_mb:g}"
            self._refused(worker, manifest, reason)
        elif self.leases.expect(worker, key, manifest.attempt):
            ticket, grant = leased
            spent_s = sum(manifest.spent.values())  # without what it waited for the checkpoint
            self._dispatch.pace.ended(worker, spent_s)
            self.leases.lengths.ended(worker, ticket.task.id, spent_s)
            self._ended_after(worker, grant.seconds(manifest.seconds, self.clock()), manifest.age_s)
            name = f"{worker}-{key.iteration}-{key.number}-{next(self._pulls)}"
            self._fleet.workers[worker].pull(manifest, ticket, self.store.incoming(key.round, name))
            self.table.fetches(worker)
        elif len(spares := self._spares.setdefault((worker, key), set())) < _MOST_SPARES:
            spares.add(manifest.episode_id)
        else:
            self._refused(worker, manifest, f"there are {_MOST_SPARES} others of its ticket")

    def _take_home(self, pulled: Pulled) -> None:
        """Stores the episode, which is durable after ``_make_durable``."""
        worker, manifest = pulled.worker, pulled.manifest
        key = manifest.key
        self._stats.worker_result(worker).pull_bytes += manifest.size
        self._dispatch.landed(key)
        leased = self.leases.as_leased(worker, manifest)
        seconds = leased[1].seconds(manifest.seconds, self.clock()) if leased else manifest.seconds
        is_new = self._land(pulled.trajectory, pulled.path, seconds)
        if not is_new:
            pulled.path.unlink(missing_ok=True)
        self._reliability.landed(worker)
        self._unflushed.append((pulled, is_new))

    def _make_durable(self) -> None:
        """Flushes the episodes that have landed, and only then lets their workers delete them."""
        if self._unflushed:
            self.store.flush()
        for pulled, is_new in self._unflushed:
            if is_new:
                self.table.landed(pulled)
            self._forget(pulled.worker, pulled.manifest)
        self._unflushed.clear()

    def _refused(self, worker: str, manifest: EpisodeManifest, reason: str) -> None:
        self.table.tell("episode_refused", worker, episode=manifest.episode_id, reason=reason)
        self._forget(worker, manifest)
        self._retry(worker, manifest.slot, manifest.key, reason, manifest.attempt)

    def _forget(self, worker: str, manifest: EpisodeManifest) -> None:
        """Lets the worker delete the episode, and others of its ticket."""
        for episode in sorted({manifest.episode_id, *self._spares.pop((worker, manifest.key), ())}):
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
        if key not in self.leases.tickets:
            return
        self._stats.worker_result(worker).retried += 1
        self.table.tell("episode_retried", worker, slot=slot, **key.place(), reason=reason)
        is_set_aside = self._failed(worker, key, reason, self.table.able(), attempt, by)
        if worker not in self.leases.holders(key):
            self._fleet.workers[worker].drop([key], "faults")  # it may run what it announced
        if (
            not is_set_aside
            and self.leases.is_blamed_on_one(key)
            and self._reliability.failed(worker, key, self.table.states[worker].slots)
        ):
            error = MisconductError(worker, f"all that it is given fails, at last: {reason}", proven=True)
            self._fleet.workers[worker].refuse(error)
