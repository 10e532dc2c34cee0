"""Collection on a fleet over SSH: push the checkpoint, lease the tickets, pull each episode as it ends."""

from __future__ import annotations

import queue
import threading
import time
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from digirl_dist.checkpoint import Checkpoint
from digirl_dist.collect.account import Account
from digirl_dist.collect.dispatch import Dispatch, DispatchRules, Standing
from digirl_dist.collect.iteration import Closing, Iteration
from digirl_dist.errors import HarvestError, WorkerError
from digirl_dist.events import Events
from digirl_dist.fleet.fleet import Fleet
from digirl_dist.fleet.leases import Leases
from digirl_dist.fleet.news import (
    Acting,
    Added,
    Alive,
    Ended,
    EpisodeFailed,
    Joined,
    Leaving,
    Loaded,
    Lost,
    News,
    Pulled,
    Refused,
    Removed,
    Roster,
    RosterRefused,
    SlotChanged,
    Spent,
    Trying,
)
from digirl_dist.harvest import Harvest
from digirl_dist.job import Notice
from digirl_dist.settings import LimitSettings
from digirl_dist.status import Status, WorkerStatus
from digirl_dist.store import Store
from digirl_dist.tasks import Json, Key, Ticket

_LOOK_S = 0.5
_ACCOUNTS_S = 1.0


class FleetCollector:
    """Collector over SSH."""

    def __init__(
        self,
        fleet: Fleet[Any],
        limits: LimitSettings,
        rules: DispatchRules,
        closing: Closing,
        store: Store,
        events: Events,
        status: Status,
    ) -> None:
        self.fleet = fleet
        self.limits = limits
        self.closing = closing
        self.store = store
        self.events = events
        self.standing = {name: Standing() for name in fleet.workers}
        self.leases = Leases(limits.episode_attempts)
        self.dispatch = Dispatch(fleet, self.standing, self.leases, rules, events)
        self.accounts: dict[int, Account] = {}
        self.status = status
        self.offers: queue.SimpleQueue[tuple[Checkpoint, Sequence[Ticket]]] = queue.SimpleQueue()
        self.closed = threading.Event()
        self.fleet.start()

    def collect(self, checkpoint: Checkpoint, tickets: Sequence[Ticket]) -> Harvest:
        return _Harvesting(self, checkpoint, tickets).run()

    def offer(self, checkpoint: Checkpoint, tickets: Sequence[Ticket]) -> None:
        self.offers.put((checkpoint, tickets))

    def close(self) -> None:
        self.closed.set()
        self.fleet.close()


class _Harvesting:
    """One iteration of a fleet, from the first news to the last landed episode."""

    def __init__(self, collector: FleetCollector, checkpoint: Checkpoint, tickets: Sequence[Ticket]) -> None:
        self._fleet = collector.fleet
        self._limits = collector.limits
        self._leases = collector.leases
        self._dispatch = collector.dispatch
        self._store = collector.store
        self._events = collector.events
        self._standing = collector.standing
        self._status = collector.status
        self._offers = collector.offers
        self._closed = collector.closed
        self._checkpoint = checkpoint
        self._iteration = Iteration(tickets, self._leases, self._store, collector.closing)
        self._accounts = collector.accounts
        self._account = self._account_of(self._iteration.number)
        self._account.started_at = self._able_at = time.monotonic()
        self._asked: set[str] = set()

    def run(self) -> Harvest:
        number = self._iteration.number
        self._status.host(f"collect iteration {number}")
        if not self._iteration.is_over:
            self._fleet.publish(self._checkpoint)
        while not self._iteration.is_over:
            self._turn(_LOOK_S)
            self._status.collecting(number, self._iteration.missing)
            self._check_that_somebody_can()
        self._settle_accounts()
        self._status.host(f"store iteration {number} and learn from it")
        return self._iteration.close(self._accounts.pop(number))

    def _turn(self, timeout_s: float) -> None:
        """Hand out what there is, then take in what happens next, if anything does in that time."""
        if self._closed.is_set():
            raise HarvestError(f"iteration {self._iteration.number}: the collection was ended before it was complete")
        self._take_offers()
        self._dispatch.hand_out(self._checkpoint.iteration)
        self._let_go()
        news = self._fleet.news(timeout_s)
        if news is not None:
            self._take_in(news)

    def _take_offers(self) -> None:
        while not self._offers.empty():  # this is its only reader
            checkpoint, tickets = self._offers.get()
            if checkpoint.iteration > self._checkpoint.iteration:
                self._checkpoint = checkpoint
                self._fleet.publish(checkpoint)
            self._iteration.begin_later(tickets)

    def _settle_accounts(self) -> None:
        """Ask every worker where its slots' time went; one that does not answer at once stays without an account."""
        self._asked = {name for name, standing in self._standing.items() if standing.slots}
        for name in self._asked:
            self._account.outcome(name).slots = self._standing[name].slots
            self._fleet.workers[name].collected()
        deadline = time.monotonic() + _ACCOUNTS_S
        while self._asked and time.monotonic() < deadline:
            self._turn(_ACCOUNTS_S)

    def _account_of(self, number: int) -> Account:
        return self._accounts.setdefault(number, Account(number))

    def _take_in(self, news: News) -> None:
        worker = getattr(news, "worker", None)
        if worker is not None and worker not in self._standing and not isinstance(news, Added):
            return  # the last words of one that was let go
        match news:
            case Joined():
                self._joined(news)
            case Loaded(worker, version, push_s, push_bytes):
                self._loaded(worker, version, push_s, push_bytes)
            case Acting(worker, slot, iteration):
                self._account_of(max(iteration, self._iteration.number)).acting(worker, slot)
            case Ended(worker, notice):
                self._ended(worker, notice)
            case Pulled():
                self._land(news)
            case Refused(worker, notice, reason):
                self._refused(worker, notice, reason)
            case Removed(worker, episode, reason):
                self._tell("episode_refused", worker, episode=episode, reason=reason)
            case EpisodeFailed(worker, slot, iteration, index, reason):
                self._retry(worker, slot, (iteration, index), reason)
            case SlotChanged(worker, slot, state, reason, in_service):
                self._slot_changed(worker, slot, state, reason, in_service)
            case Lost(worker, error):
                self._lost(worker, error)
            case Spent(worker, seconds):
                self._account.outcome(worker).slot_seconds = seconds
                self._asked.discard(worker)
            case Trying(worker, doing, limit_s):
                self._status.workers[worker] = WorkerStatus(doing, limit_s=limit_s)
            case Alive():
                self._alive(news)
            case Added() | Leaving() | RosterRefused():
                self._roster_changed(news)

    def _alive(self, news: Alive) -> None:
        seen = self._status.worker(news.worker)
        seen.heard_at = time.monotonic()
        seen.doing, seen.since, seen.limit_s = news.doing, seen.heard_at - news.for_s, self._limits.stuck_s
        seen.slots = news.slots

    def _tell(self, kind: str, worker: str, **content: Json) -> None:
        """An event of a worker."""
        said = ", ".join(f"{key} {value}" for key, value in content.items() if value not in ("", None))
        seen = self._status.worker(worker)
        seen.last_event = f"{kind}: {said}"
        if content.get("reason") and kind != "episode_dropped":  # an episode that is not wanted costs nothing
            seen.last_trouble, seen.troubled_at = seen.last_event, time.monotonic()
        self._events.emit(kind, worker=worker, **content)

    def _roster_changed(self, news: Roster) -> None:
        match news:
            case Added(worker):
                self._standing[worker] = Standing()
                self._tell("worker_added", worker)
            case Leaving(worker):
                self._standing[worker].leaving = True
                self._tell("worker_leaving", worker)
            case RosterRefused(reason):
                self._events.emit("roster_refused", reason=reason)

    def _let_go(self) -> None:
        """Part from workers that were to leave and hold nothing any more."""
        for name in [name for name, standing in self._standing.items() if standing.leaving]:
            if not self._leases.holds(name):
                self._fleet.remove(name)
                del self._standing[name]
                self._status.workers.pop(name, None)
                self._events.emit("worker_left", worker=name)

    def _joined(self, joined: Joined) -> None:
        worker, slots, held = joined.worker, joined.slots, joined.held
        self._standing[worker] = replace(self._standing[worker], slots=slots, in_service=slots, error=None)
        if joined.chosen:
            self._status.worker(worker).bsize = f"bsize: auto chose {slots}: {joined.chosen}"
            self._tell("bsize", worker, slots=slots, reason=joined.chosen)
        wanted = {key for key in held if self._leases.adopt(worker, key)}
        unwanted = [key for key in held if key not in wanted]
        if unwanted:
            self._fleet.workers[worker].drop(unwanted, "faults")
        self._tell("worker_joined", worker, slots=slots, still_running=len(wanted))

    def _loaded(self, worker: str, version: int, push_s: float, push_bytes: int) -> None:
        outcome = self._account.outcome(worker)
        outcome.push_s += push_s
        outcome.push_bytes += push_bytes
        self._tell("pushed", worker, version=version, seconds=round(push_s, 4), bytes=push_bytes)

    def _ended(self, worker: str, notice: Notice) -> None:
        """Pull the episode if its ticket is still open; a stale or repeated one is deleted unread."""
        key = notice.iteration, notice.index
        ticket = self._leases.tickets.get(key)
        self._dispatch.pace.ended(worker, sum(notice.spent.values()))  # without what it waited for the checkpoint
        if ticket is None or not self._leases.expect(worker, key):
            self._tell("episode_dropped", worker, episode=notice.episode_id, reason="not wanted any more")
            self._fleet.workers[worker].forget(notice.episode_id)
            return
        self._account.ended(worker, notice.seconds, notice.age_s)
        path = self._store.incoming(self._iteration.counts_in(key), f"{worker}-{key[0]}-{key[1]}", notice.size)
        self._fleet.workers[worker].pull(notice, ticket, path)

    def _land(self, pulled: Pulled) -> None:
        """Make it durable, and only then let the worker delete it."""
        worker, notice = pulled.worker, pulled.notice
        key = notice.iteration, notice.index
        account = self._account_of(self._iteration.counts_in(key))
        self._account.outcome(worker).pull_bytes += notice.size
        self._dispatch.landed(worker, key)
        if self._iteration.land(pulled.trajectory, pulled.path):
            account.outcome(worker).episodes += 1
            account.seconds[key] = notice.seconds
            self._tell(
                "episode",
                worker,
                iteration=notice.iteration,
                ticket=notice.index,
                success=pulled.trajectory.success,
                reward=pulled.trajectory.reward,
                attempt=notice.attempt,
                policy_version=notice.policy_version,
                digest=notice.digest,
                pull_s=round(pulled.pull_s, 4),
            )
        else:
            pulled.path.unlink(missing_ok=True)
        self._fleet.workers[worker].forget(notice.episode_id)

    def _refused(self, worker: str, notice: Notice, reason: str) -> None:
        self._tell("episode_refused", worker, episode=notice.episode_id, reason=reason)
        self._fleet.workers[worker].forget(notice.episode_id)
        self._retry(worker, notice.slot, (notice.iteration, notice.index), reason)

    def _retry(self, worker: str, slot: int, key: Key, reason: str) -> None:
        if key in self._leases.tickets:
            self._account.outcome(worker).retried += 1
            self._tell("episode_retried", worker, slot=slot, ticket=key[1], reason=reason)
            self._leases.fail(worker, key, reason)

    def _slot_changed(self, worker: str, slot: int, state: str, reason: str, in_service: int) -> None:
        standing = self._standing[worker]
        standing.in_service = in_service
        standing.slot_reasons[slot] = reason
        self._tell("slot", worker, slot=slot, state=state, reason=reason)

    def _lost(self, worker: str, error: WorkerError) -> None:
        released = self._leases.release(worker)
        self._standing[worker] = Standing(error=error, leaving=self._standing[worker].leaving)
        self._account.outcome(worker).losses.append(error.reason)
        self._tell(
            "worker_lost", worker, reason=error.reason, remedy=error.remedy, fatal=error.fatal, released=released
        )

    def _check_that_somebody_can(self) -> None:
        """Raises HarvestError when every worker is out for good, or none could run anything for too long."""
        now = time.monotonic()
        if any(standing.able for standing in self._standing.values()):
            self._able_at = now
            return
        for_good = all(self._is_out_for_good(standing) for standing in self._standing.values())
        if for_good or now - self._able_at > self._limits.no_worker_s:
            waited = "" if for_good else f" for {self._limits.no_worker_s:.0f} s"
            reasons = "\n  ".join(self._reason(name) for name in self._standing)
            raise HarvestError(
                f"iteration {self._iteration.number}: no worker could run anything{waited}, "
                f"{self._iteration.missing} episodes are missing\n  {reasons}"
            )

    def _is_out_for_good(self, standing: Standing) -> bool:
        closed = standing.slots > 0 and standing.in_service == 0
        return closed or (standing.error is not None and standing.error.fatal)

    def _reason(self, name: str) -> str:
        standing = self._standing[name]
        if standing.error is not None:
            return str(standing.error)
        if standing.slots and not standing.in_service:
            return f"worker {name}: every emulator failed: {next(iter(standing.slot_reasons.values()), '')}"
        return f"worker {name}: it has not answered yet"
